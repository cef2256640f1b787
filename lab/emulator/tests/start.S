/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What cannot be C: the way into long mode on both CPUs, the entries of all interrupts, and VMRUN.
 * QEMU's -kernel enters at start32, in protected mode without paging: the note says so (PVH).
 */
	.section .note.Xen, "a", @note
	.balign 4
	.long 4, 8, 18 /* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.quad start32

	.data
	.balign 4096
	/* The first 4 GiB as they are, in pages of 1 GiB. */
	.globl host_pml4
host_pml4:
	.quad host_pdpt + 0x3
	.fill 511, 8, 0
host_pdpt:
	.quad 0x00000083, 0x40000083, 0x80000083, 0xc0000083
	.fill 508, 8, 0
	.balign 8
gdt:
	.quad 0
	.quad 0x00cf9b000000ffff /* 0x08: code, 32 bits */
	.quad 0x00cf93000000ffff /* 0x10: data */
	.quad 0x00af9b000000ffff /* 0x18: code, 64 bits */
gdt_end:
gdt_pointer:
	.word gdt_end - gdt - 1
	.quad gdt

	.bss
	.balign 4096
	.skip 16384
stack0:
	.skip 16384
stack1:

	.text
	/* Copied to a page below 1 MiB: where CPU 1 starts. */
	.globl trampoline, trampoline_end
	.code16
trampoline:
	cli
	lgdtl %cs:low_gdt_pointer - trampoline
	movl %cr0, %eax
	orl $1, %eax
	movl %eax, %cr0
	ljmpl $0x08, $second32
low_gdt_pointer:
	.word gdt_end - gdt - 1
	.long gdt
trampoline_end:

	.code32
	.globl start32
start32:
	cli
	xorl %edi, %edi
	movl $stack0, %esp
	jmp paging
second32:
	movl $1, %edi
	movl $stack1, %esp
paging:
	cld
	lgdt gdt_pointer
	movl $0x10, %eax
	movl %eax, %ds
	movl %eax, %es
	movl %eax, %ss
	xorl %eax, %eax
	movl %eax, %fs
	movl %eax, %gs
	movl $0x406a0, %eax /* OSXSAVE, OSXMMEXCPT, OSFXSR, PGE, PAE */
	movl %eax, %cr4
	movl $host_pml4, %eax
	movl %eax, %cr3
	movl $0xc0000080, %ecx
	movl $0x1900, %eax /* SVME, NXE, LME */
	xorl %edx, %edx
	wrmsr
	movl $0x80010033, %eax /* PG, WP, NE, ET, MP, PE */
	movl %eax, %cr0
	ljmp $0x18, $long64

	.code64
long64:
	call enter
	ud2

	/* 256 entries of 16 bytes. All leave the same on the stack: see struct frame. */
	.balign 16
	.globl vectors
vectors:
	.set vector, 0
	.rept 256
	.balign 16
	.if vector != 8 && (vector < 10 || vector > 14) && vector != 17 && vector != 21 && vector != 29 && vector != 30
	pushq $0
	.endif
	pushq $vector
	jmp interrupted
	.set vector, vector + 1
	.endr
interrupted:
	pushq %rax
	pushq %rcx
	pushq %rdx
	pushq %rbx
	pushq %rbp
	pushq %rsi
	pushq %rdi
	pushq %r8
	pushq %r9
	pushq %r10
	pushq %r11
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, %rdi
	movq %rsp, %rbp
	andq $-16, %rsp
	cld
	call interrupt
	movq %rbp, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %r11
	popq %r10
	popq %r9
	popq %r8
	popq %rdi
	popq %rsi
	popq %rbp
	popq %rbx
	popq %rdx
	popq %rcx
	popq %rax
	addq $16, %rsp
	iretq

	/*
	 * vm_enter(vmcb, regs, on): as KVM does it. The host's interrupts, if on, are so for the guest's sake, and
	 * wait for GIF. They are off on return.
	 */
	.globl vm_enter
vm_enter:
	pushq %rbx
	pushq %rbp
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	pushq %rsi
	movq %rdi, %rax
	clgi
	testl %edx, %edx
	jz 1f
	sti
1:
	movq 0(%rsi), %rcx
	movq 8(%rsi), %rdx
	movq 16(%rsi), %rbx
	movq 24(%rsi), %rbp
	movq 40(%rsi), %rdi
	movq 48(%rsi), %r8
	movq 56(%rsi), %r9
	movq 64(%rsi), %r10
	movq 72(%rsi), %r11
	movq 80(%rsi), %r12
	movq 88(%rsi), %r13
	movq 96(%rsi), %r14
	movq 104(%rsi), %r15
	movq 32(%rsi), %rsi
	vmrun %rax
	cli
	stgi
	pushq %rsi
	movq 8(%rsp), %rsi
	popq 32(%rsi)
	movq %rcx, 0(%rsi)
	movq %rdx, 8(%rsi)
	movq %rbx, 16(%rsi)
	movq %rbp, 24(%rsi)
	movq %rdi, 40(%rsi)
	movq %r8, 48(%rsi)
	movq %r9, 56(%rsi)
	movq %r10, 64(%rsi)
	movq %r11, 72(%rsi)
	movq %r12, 80(%rsi)
	movq %r13, 88(%rsi)
	movq %r14, 96(%rsi)
	movq %r15, 104(%rsi)
	popq %rsi
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbp
	popq %rbx
	ret

	/* What compilers call for assignments of structures. */
	.globl memcpy, memset
memcpy:
	movq %rdi, %rax
	movq %rdx, %rcx
	rep movsb
	ret
memset:
	movq %rdi, %r8
	movl %esi, %eax
	movq %rdx, %rcx
	rep stosb
	movq %r8, %rax
	ret

	.section .note.GNU-stack, "", @progbits
