//! QEMU's interface for plugins, as far as it is used: version 4, of QEMU 9.2 and 10.0. The
//! declarations are facts of the interface; no header and no library is used. The functions are
//! found by name in the process that has loaded the plugin, so that a version without one of them
//! is refused in words.

#![expect(unsafe_code, reason = "calls a C interface")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;

/// Identifies the plugin.
pub(super) type Id = u64;
/// An opaque pointer of QEMU.
pub(super) type Opaque = *mut c_void;
/// Describes an access.
pub(super) type MemoryInfo = u32;

/// The flags of callbacks.
pub(super) const NO_REGISTERS: c_int = 0;
pub(super) const READS_REGISTERS: c_int = 1;
/// Loads and stores.
pub(super) const READ_WRITE: c_int = 3;
/// The condition `not equal`.
pub(super) const NOT_EQUAL: c_int = 3;

/// A counter of each CPU, which code in blocks can compare.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct U64 {
    pub(super) scoreboard: Opaque,
    pub(super) offset: usize,
}

/// A register.
#[repr(C)]
pub(super) struct RegisterDescription {
    pub(super) handle: Opaque,
    pub(super) name: *const c_char,
    pub(super) feature: *const c_char,
}

/// An array of glib.
#[repr(C)]
pub(super) struct Array {
    pub(super) data: *mut c_void,
    pub(super) len: c_uint,
}

/// The emulator, as QEMU describes it.
#[repr(C)]
pub(super) struct Info {
    pub(super) target_name: *const c_char,
    pub(super) version_min: c_int,
    pub(super) version_cur: c_int,
    pub(super) system_emulation: bool,
}

pub(super) type VcpuCallback = extern "C" fn(Id, c_uint);
pub(super) type TranslateCallback = extern "C" fn(Id, Opaque);
pub(super) type ExecuteCallback = extern "C" fn(c_uint, Opaque);
pub(super) type MemoryCallback = extern "C" fn(c_uint, MemoryInfo, u64, Opaque);
pub(super) type ExitCallback = extern "C" fn(Id, Opaque);

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// Finds the functions, or returns the name of one that is missing.
            pub(super) fn find() -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let found = symbol($symbol).ok_or_else(|| named($symbol))?;
                        // SAFETY: the type is that of the function in the interface.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    on_vcpu_init = c"qemu_plugin_register_vcpu_init_cb": fn(Id, VcpuCallback);
    on_vcpu_resume = c"qemu_plugin_register_vcpu_resume_cb": fn(Id, VcpuCallback);
    on_translate = c"qemu_plugin_register_vcpu_tb_trans_cb": fn(Id, TranslateCallback);
    on_exit = c"qemu_plugin_register_atexit_cb": fn(Id, ExitCallback, Opaque);
    block_len = c"qemu_plugin_tb_n_insns": fn(Opaque) -> usize;
    block_address = c"qemu_plugin_tb_vaddr": fn(Opaque) -> u64;
    block_instruction = c"qemu_plugin_tb_get_insn": fn(Opaque, usize) -> Opaque;
    instruction_data = c"qemu_plugin_insn_data": fn(Opaque, *mut u8, usize) -> usize;
    instruction_address = c"qemu_plugin_insn_vaddr": fn(Opaque) -> u64;
    on_block = c"qemu_plugin_register_vcpu_tb_exec_cb":
        fn(Opaque, ExecuteCallback, c_int, Opaque);
    on_block_if = c"qemu_plugin_register_vcpu_tb_exec_cond_cb":
        fn(Opaque, ExecuteCallback, c_int, c_int, U64, u64, Opaque);
    on_execute_if = c"qemu_plugin_register_vcpu_insn_exec_cond_cb":
        fn(Opaque, ExecuteCallback, c_int, c_int, U64, u64, Opaque);
    on_execute = c"qemu_plugin_register_vcpu_insn_exec_cb":
        fn(Opaque, ExecuteCallback, c_int, Opaque);
    on_memory = c"qemu_plugin_register_vcpu_mem_cb":
        fn(Opaque, MemoryCallback, c_int, c_int, Opaque);
    is_store = c"qemu_plugin_mem_is_store": fn(MemoryInfo) -> bool;
    size_shift = c"qemu_plugin_mem_size_shift": fn(MemoryInfo) -> c_uint;
    registers = c"qemu_plugin_get_registers": fn() -> *mut Array;
    read_register = c"qemu_plugin_read_register": fn(Opaque, *mut Array) -> c_int;
    read_virtual = c"qemu_plugin_read_memory_vaddr": fn(u64, *mut Array, usize) -> bool;
    new_scoreboard = c"qemu_plugin_scoreboard_new": fn(usize) -> Opaque;
    scoreboard_of = c"qemu_plugin_scoreboard_find": fn(Opaque, c_uint) -> *mut u64;
    // Not of the interface, but exported by QEMU's builds with modules, as those of distributions
    // are. The type has not changed since QEMU 5.0.
    physical_memory = c"cpu_physical_memory_rw": fn(u64, *mut u8, u64, bool);
    // Not of the interface either: see `Qemu::cpu`.
    cpu_at = c"qemu_get_cpu": fn(c_int) -> Opaque;
    new_bytes = c"g_byte_array_new": fn() -> *mut Array;
    free_array = c"g_array_free": fn(*mut Array, c_int) -> *mut u8;
}

fn named(symbol: &CStr) -> String {
    symbol.to_string_lossy().into_owned()
}

pub(super) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
