// SPDX-License-Identifier: GPL-2.0-only
/*
 * Virtual interrupts, and the interrupt shadow. A V_IRQ comes once, when the guest's IF, its TPR and its shadow
 * allow it; the VINTR intercept tells the host of that moment; the host's own interrupts do not disturb it, nor it
 * them.
 */
#include "svm.h"

#define VECTOR 0x60
#define HOST_VECTOR 0x50
#define ROUNDS 3000
#define GPA (1ul << 39)
#define STACK (1ul << 40)

/* Guests without a stack of their own; labels are where an interrupt is to come. */
void waits(void), sti_vmmcall(void), after_sti(void), sti_nop(void), after_nop(void), sti_hlt(void), after_hlt(void);
void mov_ss(void), nops(void), lowers_tpr(void), after_tpr(void);
asm("waits: vmmcall; jmp waits\n"
    "sti_vmmcall: sti\n"
    "after_sti: vmmcall; jmp waits\n"
    "sti_nop: sti; nop\n"
    "after_nop: nop; vmmcall; jmp waits\n"
    "sti_hlt: sti; hlt\n"
    "after_hlt: vmmcall; jmp waits\n"
    "mov_ss: movl %eax, %ss; vmmcall; jmp waits\n"
    "nops: nop; nop; vmmcall; jmp waits\n"
    "lowers_tpr: xorl %eax, %eax; movq %rax, %cr8\n"
    "after_tpr: vmmcall; jmp waits\n");

static struct vm vm;
static u64 count, at, host_count;
static bool stop;

static void delivered(struct frame *frame)
{
	count++;
	at = frame->rip;
}

static void host_delivered(struct frame *frame)
{
	(void)frame;
	host_count++;
	eoi();
}

static u32 virq(u32 priority)
{
	return V_INTR_MASKING | V_IRQ | V_PRIORITY(priority);
}

static void start(void (*code)(void), u64 flags, u32 int_ctl)
{
	vm_goto(&vm, code);
	vm.vmcb->flags |= flags;
	vm.vmcb->int_ctl = int_ctl;
	vm.vmcb->int_vector = VECTOR;
	vm.vmcb->rax = 0x10; /* for SS */
	count = at = 0;
}

static void until_vmmcall(void)
{
	while (vm_run(&vm) == EXIT_INTR)
		;
	if (vm.vmcb->exit_code != EXIT_VMMCALL)
		vm_die(&vm, "VMMCALL");
	vm.vmcb->rip += 3;
}

/* Run until VMMCALL; the interrupt must have come once, before the instruction at `where`, or not at all. */
static void comes(const char *name, void (*where)(void))
{
	bool still;

	until_vmmcall();
	still = vm.vmcb->int_ctl & V_IRQ;
	check(name, count == !!where && at == (u64)where && still == !where,
	      "came %lu times, at %lx for %lx, V_IRQ is %s", count, at, (u64)where, still ? "set" : "clear");
}

static void plain(void)
{
	start(waits, 0, virq(15));
	comes("a virtual interrupt waits for IF", NULL);
	start(nops, IF, virq(15));
	comes("a virtual interrupt comes with IF", nops);
	until_vmmcall();
	check("a virtual interrupt comes once", count == 1, "%lu times", count);
	start(nops, IF, virq(5) | V_TPR(5));
	comes("V_TPR holds back what is not above it", NULL);
	start(nops, IF, virq(6) | V_TPR(5));
	comes("V_TPR lets pass what is", nops);
	start(nops, IF, virq(0) | V_TPR(5) | V_IGNORE_TPR);
	comes("V_IGN_TPR lets everything pass", nops);
	start(lowers_tpr, IF, virq(5) | V_TPR(5));
	comes("a lower CR8 lets it pass", after_tpr);
	check("V_TPR is what the guest made of it", (vm.vmcb->int_ctl & 15) == 0, "int_ctl %x", vm.vmcb->int_ctl);
}

static void shadows(void)
{
	start(sti_vmmcall, 0, virq(15));
	until_vmmcall();
	check("STI's shadow is in int_state", vm.vmcb->int_state == SHADOW && !count, "%lx, %lu came",
	      vm.vmcb->int_state, count);
	vm.vmcb->int_state = 0;
	until_vmmcall();
	check("and gone after it", !vm.vmcb->int_state && count == 1, "%lx, %lu came", vm.vmcb->int_state, count);
	start(sti_nop, 0, virq(15));
	comes("STI holds back for one instruction", after_nop);
	start(sti_hlt, 0, virq(15));
	comes("STI; HLT is woken", after_hlt);
	start(mov_ss, IF, V_INTR_MASKING);
	until_vmmcall();
	check("MOV SS's shadow is in int_state", vm.vmcb->int_state == SHADOW, "%lx", vm.vmcb->int_state);
	start(nops, IF, virq(15));
	vm.vmcb->int_state = SHADOW;
	until_vmmcall();
	check("a shadow from the host holds back for one instruction", count == 1 && at == (u64)nops + 1,
	      "%lu at %lx for %lx", count, at, (u64)nops + 1);
}

/* The window: an exit instead of the interrupt. */
static void window(void)
{
	vm.vmcb->intercept |= INTERCEPT(I_VINTR);
	start(nops, 0, virq(15));
	until_vmmcall();
	check("no VINTR exit with IF=0", !count, "%lu came", count);
	start(nops, IF, virq(15));
	vm_run(&vm);
	check("a VINTR exit with IF=1", vm.vmcb->exit_code == EXIT_VINTR && !count && vm.vmcb->rip == (u64)nops,
	      "exit %lx at %lx", vm.vmcb->exit_code, vm.vmcb->rip);
	check("V_IRQ is still there then", vm.vmcb->int_ctl & V_IRQ, "int_ctl %x", vm.vmcb->int_ctl);
	start(sti_nop, 0, virq(15));
	vm_run(&vm);
	check("a VINTR exit after STI's shadow", vm.vmcb->exit_code == EXIT_VINTR && vm.vmcb->rip == (u64)after_nop,
	      "exit %lx at %lx for %lx", vm.vmcb->exit_code, vm.vmcb->rip, (u64)after_nop);
	start(nops, IF, virq(15));
	vm.vmcb->event_inj = EVENT_VALID | EVENT_INTR | VECTOR;
	vm_run(&vm);
	check("a VINTR exit after an injected interrupt's handler", vm.vmcb->exit_code == EXIT_VINTR && count == 1,
	      "exit %lx at %lx, %lu came", vm.vmcb->exit_code, vm.vmcb->rip, count);
	vm.vmcb->intercept &= ~INTERCEPT(I_VINTR);
}

/* The delivery faults: the processor has taken the interrupt, and says so. */
static void interrupted(void)
{
	start(nops, IF, virq(15));
	*entry(vm.table, STACK, 1) = GPA | P | W;
	map(vm.nested, GPA, 0, 0);
	vm.vmcb->rsp = STACK + PAGE - 8;
	vm.vmcb->tlb_ctl = FLUSH_ALL;
	vm_run(&vm);
	vm.vmcb->tlb_ctl = FLUSH_NOTHING;
	check("a page fault below a virtual interrupt",
	      vm.vmcb->exit_code == EXIT_NPF && vm.vmcb->exit_int_info == (EVENT_VALID | EVENT_INTR | VECTOR) &&
		      !(vm.vmcb->int_ctl & V_IRQ),
	      "exit %lx, in delivery %x, int_ctl %x", vm.vmcb->exit_code, vm.vmcb->exit_int_info, vm.vmcb->int_ctl);
}

static void disturb(void)
{
	while (!READ(stop)) {
		if (!ipi_is_pending(HOST_VECTOR))
			send_ipi(0, HOST_VECTOR);
		for (u64 until = rdtsc() + 20000; rdtsc() < until;)
			pause();
	}
}

/* Every entry has a V_IRQ, while another CPU's interrupts come: none of either kind is lost, none comes twice. */
static void under_fire(void)
{
	u64 came = 0, lost = 0, exits = 0;

	start_second(disturb);
	asm volatile("sti");
	for (u32 i = 0; i < ROUNDS; i++) {
		start(nops, IF, virq(15));
		while (vm_run(&vm) == EXIT_INTR)
			exits++;
		if (vm.vmcb->exit_code != EXIT_VMMCALL)
			vm_die(&vm, "VMMCALL");
		came += count;
		lost += count != 1;
	}
	check("a V_IRQ at every entry comes once", came == ROUNDS && !lost, "%lu of %u came, wrong in %lu", came,
	      ROUNDS, lost);
	WRITE(stop, true);
	for (u64 from = now_us(); now_us() < from + 20000;)
		pause();
	lost = READ(host_count);
	send_ipi(0, HOST_VECTOR);
	for (u64 from = now_us(); READ(host_count) == lost && now_us() < from + 200000;)
		pause();
	check("the host's interrupts still come", READ(host_count) == lost + 1, "%lu", READ(host_count) - lost);
	say("info exits for the host: %lu of %lu interrupts", exits, lost);
}

void run(void)
{
	on(VECTOR, delivered);
	on(HOST_VECTOR, host_delivered);
	vm_init(&vm, waits);
	plain();
	shadows();
	window();
	interrupted();
	under_fire();
}
