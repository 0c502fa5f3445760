//! QEMU, as the sanitizer sees it: registers, memory, and the page that each CPU fetches from.

#![expect(unsafe_code, reason = "calls a C interface")]

use std::cell::Cell;
use std::ffi::CStr;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::api::{Api, Array, Opaque, RegisterDescription, U64};
use crate::arch::{Architecture, Context, Operand, Privilege};
use crate::report::Line;
use crate::sanitizer::{CPUS_MAX, Host};

/// The value of a CPU's page that no block has.
const NOWHERE: u64 = u64::MAX;

/// The handles of the registers of a CPU.
#[derive(Debug, Default)]
struct Registers {
    general: Vec<usize>,
    context: Vec<usize>,
    pc: usize,
    privilege: usize,
    segments: [usize; 2],
}

/// QEMU.
pub(super) struct Qemu {
    pub(super) api: Api,
    /// For each CPU, the page and the privilege of the last block, which blocks compare with their
    /// own.
    pub(super) page: U64,
    registers: Box<[OnceLock<Registers>]>,
    out: Mutex<Box<dyn std::io::Write + Send>>,
}

// SAFETY: the interface may be called from all threads of CPUs. The scoreboard's pointer does not
// change, and its words are used as atomics.
unsafe impl Send for Qemu {}
// SAFETY: as above.
unsafe impl Sync for Qemu {}

impl std::fmt::Debug for Qemu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qemu").finish_non_exhaustive()
    }
}

thread_local! {
    /// A buffer of glib, which a thread uses for all its calls.
    static BUFFER: Cell<usize> = const { Cell::new(0) };
}

const SEGMENTS: [&str; 2] = ["fs_base", "gs_base"];

impl Qemu {
    /// Finds the interface, and opens the output: standard error without a file.
    pub(super) fn new(out: Option<&str>) -> Result<Self, String> {
        let api = Api::find().map_err(|name| format!("QEMU has no function {name}"))?;
        if api.physical_memory.is_none() && api.read_memory_hwaddr.is_none() {
            return Err("this QEMU does not let plugins read physical memory".to_owned());
        }
        let out: Box<dyn std::io::Write + Send> = match out {
            Some(path) => Box::new(File::create(path).map_err(|error| format!("{path}: {error}"))?),
            None => Box::new(std::io::stderr()),
        };
        // SAFETY: the interface has no conditions for this call.
        let scoreboard = unsafe { (api.new_scoreboard)(size_of::<u64>()) };
        Ok(Self {
            api,
            page: U64 { scoreboard, offset: 0 },
            registers: (0..CPUS_MAX).map(|_| OnceLock::new()).collect(),
            out: Mutex::new(out),
        })
    }

    /// Finds the registers of the CPU that runs this thread, or returns the name of one that is
    /// missing.
    pub(super) fn find_registers(
        &self,
        cpu: usize,
        arch: &dyn Architecture,
    ) -> Result<(), &'static str> {
        // SAFETY: the CPU's own thread may call it, and the array has descriptions.
        let (array, list) = unsafe {
            let array = (self.api.registers)();
            let data = (*array).data.cast::<RegisterDescription>();
            (array, std::slice::from_raw_parts(data, (*array).len as usize))
        };
        let find = |name: &'static str| {
            // SAFETY: names are strings of C, which live as long as QEMU.
            let is_it = |register: &&RegisterDescription| unsafe {
                CStr::from_ptr(register.name).to_bytes() == name.as_bytes()
            };
            list.iter().find(is_it).map(|register| register.handle as usize).ok_or(name)
        };
        let all = |names: &[&'static str]| {
            names.iter().map(|name| find(name)).collect::<Result<Vec<usize>, _>>()
        };
        let registers = (|| {
            Ok(Registers {
                general: all(arch.general_registers())?,
                context: all(arch.context_registers())?,
                pc: find(arch.pc_register())?,
                privilege: find(arch.privilege_register())?,
                segments: SEGMENTS.map(|name| find(name).unwrap_or(0)),
            })
        })();
        // SAFETY: the array is the caller's.
        unsafe { (self.api.free_array)(array, 1) };
        let registers = registers?;
        if let Some(place) = self.registers.get(cpu) {
            let _ = place.set(registers);
        }
        Ok(())
    }

    /// Calls `fill` with an empty buffer of glib, and returns the first bytes that it filled in.
    fn bytes<const N: usize>(&self, fill: impl FnOnce(*mut Array) -> bool) -> Option<[u8; N]> {
        let mut buffer = BUFFER.get() as *mut Array;
        if buffer.is_null() {
            // SAFETY: it has no conditions.
            buffer = unsafe { (self.api.new_bytes)() };
            BUFFER.set(buffer as usize);
        }
        // SAFETY: this thread alone uses the buffer. QEMU appends registers, and sets the length
        // for memory.
        unsafe { (*buffer).len = 0 };
        if !fill(buffer) {
            return None;
        }
        // SAFETY: glib keeps `len` valid bytes at `data`.
        let filled = unsafe {
            std::slice::from_raw_parts((*buffer).data.cast::<u8>(), (*buffer).len as usize)
        };
        let mut bytes = [0; N];
        let len = filled.len().min(N);
        bytes[..len].copy_from_slice(&filled[..len]);
        Some(bytes)
    }

    fn register(&self, handle: usize) -> Option<u64> {
        if handle == 0 {
            return None;
        }
        // SAFETY: the handle is QEMU's, and this is the thread of its CPU.
        let read = |buffer| unsafe { (self.api.read_register)(handle as Opaque, buffer) > 0 };
        self.bytes(read).map(u64::from_le_bytes)
    }

    /// The value of a general register. The callback must be one that reads registers.
    pub(super) fn general(&self, cpu: usize, number: usize) -> u64 {
        let registers = self.registers.get(cpu).and_then(OnceLock::get);
        let handle = registers.and_then(|registers| registers.general.get(number));
        handle.and_then(|&handle| self.register(handle)).unwrap_or(0)
    }

    /// The value of an operand.
    pub(super) fn operand(&self, cpu: usize, operand: Operand) -> u64 {
        match operand {
            Operand::Zero => 0,
            Operand::Register(number) => self.general(cpu, usize::from(number)),
            Operand::Address { base, index, displacement, segment } => {
                let general = |number| self.general(cpu, usize::from(number));
                let index = index.map_or(0, |(number, scale)| general(number) << scale);
                let place = SEGMENTS.iter().position(|name| Some(*name) == segment);
                let registers = self.registers.get(cpu).and_then(OnceLock::get);
                let segment = place
                    .zip(registers)
                    .and_then(|(place, registers)| self.register(registers.segments[place]));
                base.map_or(0, general)
                    .wrapping_add(index)
                    .wrapping_add_signed(displacement)
                    .wrapping_add(segment.unwrap_or(0))
            }
        }
    }

    /// The page tables that the CPU of this thread uses.
    pub(super) fn context(&self, cpu: usize, arch: &dyn Architecture) -> Context {
        let Some(registers) = self.registers.get(cpu).and_then(OnceLock::get) else {
            return Context::default();
        };
        let values: Option<Vec<u64>> =
            registers.context.iter().map(|&handle| self.register(handle)).collect();
        values.map_or_else(Context::default, |values| arch.context(&values))
    }

    /// The privilege of the CPU of this thread.
    pub(super) fn privilege(&self, cpu: usize, arch: &dyn Architecture) -> Privilege {
        let registers = self.registers.get(cpu).and_then(OnceLock::get);
        let value = registers.and_then(|registers| self.register(registers.privilege));
        value.map_or(Privilege::Other, |value| arch.privilege(value))
    }

    /// The program counter of the CPU of this thread, at the start of a block.
    pub(super) fn pc(&self, cpu: usize) -> Option<u64> {
        let registers = self.registers.get(cpu).and_then(OnceLock::get)?;
        self.register(registers.pc)
    }

    /// Reads a word of virtual memory of the CPU of this thread.
    pub(super) fn read_virtual(&self, address: u64) -> Option<u64> {
        // SAFETY: QEMU sets the buffer's length.
        let read = |buffer| unsafe { (self.api.read_virtual)(address, buffer, 8) };
        self.bytes(read).map(u64::from_le_bytes)
    }

    /// The word of a CPU that its blocks compare; `None` before the CPU has begun.
    pub(super) fn page_of(&self, cpu: usize) -> Option<&AtomicU64> {
        // QEMU ends if it is asked for a CPU that has not begun, and resumes some before that.
        self.registers.get(cpu).and_then(OnceLock::get)?;
        // SAFETY: QEMU keeps the scoreboard, and moves it only while no CPU runs.
        unsafe {
            let place = (self.api.scoreboard_of)(self.page.scoreboard, cpu as u32);
            (!place.is_null()).then(|| AtomicU64::from_ptr(place))
        }
    }
}

impl Host for Qemu {
    fn read(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        if let Some(physical_memory) = self.api.physical_memory {
            // SAFETY: the buffer has eight bytes, and memory that does not exist reads as zero.
            unsafe { physical_memory(address, bytes.as_mut_ptr(), 8, false) };
            return Some(u64::from_le_bytes(bytes));
        }
        let read_memory = self.api.read_memory_hwaddr?;
        // SAFETY: QEMU sets the buffer's length. The result 0 is success.
        let read = |buffer| unsafe { read_memory(address, buffer, 8) == 0 };
        self.bytes(read).map(u64::from_le_bytes)
    }

    fn attend(&self, cpu: usize) {
        if let Some(page) = self.page_of(cpu) {
            // Pairs with `fetch` in `callbacks`: there, the CPU stores its page and then reads
            // whether it has to attend; here, that was stored before.
            page.store(NOWHERE, Ordering::SeqCst);
        }
    }

    fn print(&self, line: &Line) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "{}", line.json());
        let _ = out.flush();
    }
}
