// SPDX-License-Identifier: GPL-2.0-only
//! Two functions that some static libelf lacks.
//!
//! elfutils 0.192 (Debian 13) calls them from elf_begin() and elf_end() but leaves them out of libelf.a. They prepare and free the search
//! tree behind elf_getdata_rawchunk(), which libbpf never calls: the tree, zeroed memory, stays empty. build.rs compiles this file only
//! where they are missing.

use std::ffi::c_void;

/// Called by libelf only.
#[no_mangle]
pub extern "C" fn eu_search_tree_init(_tree: *mut c_void) {}

/// Called by libelf only.
#[no_mangle]
pub extern "C" fn eu_search_tree_fini(_tree: *mut c_void, _free_node: *mut c_void) {}
