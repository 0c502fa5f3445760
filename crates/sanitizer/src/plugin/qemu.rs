//! QEMU, as the sanitizer sees it: registers, memory, and the page that each CPU fetches from.

#![expect(unsafe_code, reason = "calls a C interface")]

use std::cell::Cell;
use std::ffi::{CStr, c_uint};
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use hashbrown::HashMap;

use super::api::{Api, Array, Opaque, RegisterDescription, U64, symbol};
use crate::arch::{Architecture, Context, Facts, Operand, Privilege};
use crate::report::Line;
use crate::sanitizer::{CPUS_MAX, Host};

/// The value of a CPU's page that no block has.
const NOWHERE: u64 = u64::MAX;

/// QEMU.
pub(super) struct Qemu {
    pub(super) api: Api,
    /// For each CPU, the page and the privilege of the last block, which blocks compare with their
    /// own.
    pub(super) page: U64,
    /// For each CPU, the handles of its registers by name.
    registers: Box<[OnceLock<HashMap<String, usize>>]>,
    /// If CPUs take turns on one thread, QEMU's structure of each.
    in_turns: OnceLock<Box<[AtomicUsize]>>,
    out: Mutex<Box<dyn std::io::Write + Send>>,
}

// SAFETY: the interface may be called from all threads of CPUs. The scoreboard's pointer does not
// change, and its words are used as atomics.
unsafe impl Send for Qemu {}
// SAFETY: as above.
unsafe impl Sync for Qemu {}

thread_local! {
    /// A buffer of glib, which a thread uses for all its calls.
    static BUFFER: Cell<usize> = const { Cell::new(0) };
    /// The address of the thread's `current_cpu`.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// The structure and the number of the CPU of this thread's last callback.
    static LAST: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

impl Qemu {
    /// Finds the interface, and opens the output: standard error without a file.
    pub(super) fn new(out: Option<&str>) -> Result<Self, String> {
        let api = Api::find().map_err(|name| format!("QEMU has no function {name}"))?;
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
            in_turns: OnceLock::new(),
            out: Mutex::new(out),
        })
    }

    /// Finds the registers of the CPU that runs this thread, or returns the name of one that is
    /// missing.
    pub(super) fn find_registers(&self, cpu: usize, facts: &Facts) -> Result<(), &'static str> {
        // SAFETY: the CPU's own thread may call it, and the array has descriptions, whose names are
        // strings of C. The array is the caller's.
        let found: HashMap<_, _> = unsafe {
            let array = (self.api.registers)();
            let data = (*array).data.cast::<RegisterDescription>();
            let list = std::slice::from_raw_parts(data, (*array).len as usize);
            // Of several with a name, the first.
            let found = list.iter().rev().map(|register| {
                let name = CStr::from_ptr(register.name).to_string_lossy().into_owned();
                (name, register.handle as usize)
            });
            let found = found.collect();
            (self.api.free_array)(array, 1);
            found
        };
        let needed = [&[facts.pc, facts.privilege], facts.context, facts.general].concat();
        if let Some(missing) = needed.into_iter().find(|name| !found.contains_key(*name)) {
            return Err(missing);
        }
        if let Some(place) = self.registers.get(cpu) {
            let _ = place.set(found);
        }
        Ok(())
    }

    /// Records a CPU that begins.
    ///
    /// # Errors
    ///
    /// If this QEMU does not show whether CPUs take turns.
    pub(super) fn begin(&self, cpu: usize) -> Result<(), &'static str> {
        let is_parallel = symbol(c"mttcg_enabled").ok_or("mttcg_enabled")?;
        symbol(c"current_cpu").ok_or("current_cpu")?;
        // SAFETY: QEMU's variable is a bool, which it has set before any CPU begins.
        if unsafe { *is_parallel.cast::<u8>() } == 0 {
            let all = || (0..CPUS_MAX).map(|_| AtomicUsize::new(0)).collect();
            // SAFETY: QEMU returns null for a number without a CPU.
            let structure = unsafe { (self.api.cpu_at)(cpu as i32) };
            self.in_turns.get_or_init(all)[cpu].store(structure as usize, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns `true` if CPUs take turns on one thread, as with `-icount`.
    pub(super) fn takes_turns(&self) -> bool {
        self.in_turns.get().is_some()
    }

    /// The CPU of a callback.
    ///
    /// If CPUs take turns, QEMU 10.0 passes the CPU that translated the block, and compares that
    /// CPU's word in conditions (`gen_cpu_index` in `accel/tcg/plugin-gen.c`).
    #[inline]
    pub(super) fn cpu(&self, given: c_uint) -> usize {
        let Some(all) = self.in_turns.get() else { return given as usize };
        let place = match CURRENT.get() {
            0 => symbol(c"current_cpu").map_or(0, |place| place as usize),
            place => place,
        };
        CURRENT.set(place);
        // SAFETY: QEMU's variable, a pointer of this thread, which `begin` has found.
        let running = unsafe { *(place as *const usize) };
        let (structure, cpu) = LAST.get();
        if structure == running {
            return cpu;
        }
        let is_it = |other: &AtomicUsize| other.load(Ordering::Relaxed) == running;
        let cpu = all.iter().position(is_it).unwrap_or(given as usize);
        LAST.set((running, cpu));
        cpu
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

    /// The value of a register of the CPU of this thread. The callback must be one that reads
    /// registers.
    pub(super) fn register(&self, cpu: usize, name: &str) -> Option<u64> {
        let handle = *self.registers.get(cpu)?.get()?.get(name)?;
        // SAFETY: the handle is QEMU's, and this is the thread of its CPU.
        let read = |buffer| unsafe { (self.api.read_register)(handle as Opaque, buffer) > 0 };
        self.bytes(read).map(u64::from_le_bytes)
    }

    /// The value of an operand.
    pub(super) fn operand(&self, cpu: usize, facts: &Facts, operand: Operand) -> u64 {
        let value = |name| self.register(cpu, name).unwrap_or(0);
        let general = |number: u8| value(facts.general[usize::from(number)]);
        match operand {
            Operand::Zero => 0,
            Operand::Register(number) => general(number),
            Operand::Address { base, index, displacement, segment } => base
                .map_or(0, general)
                .wrapping_add(index.map_or(0, |(number, scale)| general(number) << scale))
                .wrapping_add_signed(displacement)
                .wrapping_add(segment.map_or(0, value)),
        }
    }

    /// The page tables that the CPU of this thread uses.
    pub(super) fn context(&self, cpu: usize, arch: &dyn Architecture) -> Context {
        let names = arch.facts().context.iter();
        let values: Option<Vec<u64>> = names.map(|name| self.register(cpu, name)).collect();
        values.map_or_else(Context::default, |values| arch.context(&values))
    }

    /// The privilege of the CPU of this thread.
    pub(super) fn privilege(&self, cpu: usize, arch: &dyn Architecture) -> Privilege {
        let value = self.register(cpu, arch.facts().privilege);
        value.map_or(Privilege::Other, |value| arch.privilege(value))
    }

    /// Reads virtual memory of the CPU of this thread.
    fn virtual_bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        // SAFETY: QEMU sets the buffer's length.
        let read = |buffer| unsafe { (self.api.read_virtual)(address, buffer, N) };
        self.bytes(read)
    }

    /// Reads a word of virtual memory of the CPU of this thread.
    pub(super) fn read_virtual(&self, address: u64) -> Option<u64> {
        self.virtual_bytes(address).map(u64::from_le_bytes)
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
        // SAFETY: the buffer has eight bytes, and memory that does not exist reads as zero.
        unsafe { (self.api.physical_memory)(address, bytes.as_mut_ptr(), 8, false) };
        Some(u64::from_le_bytes(bytes))
    }

    fn attend(&self, cpu: usize) {
        if let Some(page) = self.page_of(cpu) {
            // Pairs with `fetch` in `callbacks`: there, the CPU stores its page and then reads
            // whether it has to attend; here, that was stored before.
            page.store(NOWHERE, Ordering::SeqCst);
        }
    }

    /// The words of the stack that are near the program counter and follow a call. Some may be left
    /// from earlier calls.
    fn callers(&self, arch: &dyn Architecture, cpu: usize, pc: u64) -> Vec<u64> {
        const CALLERS: usize = 12;
        let (stack, link) = arch.facts().stack;
        let stack = self.register(cpu, stack).unwrap_or(0);
        let link = link.and_then(|link| self.register(cpu, link));
        // The stack may end before.
        let bytes = self.virtual_bytes::<1024>(stack).map(|bytes| bytes.to_vec());
        let bytes = bytes.or_else(|| self.virtual_bytes::<128>(stack).map(|bytes| bytes.to_vec()));
        let words = bytes.iter().flat_map(|bytes| bytes.chunks_exact(8));
        let words = words.map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let is_near = |&word: &u64| word >> 32 == pc >> 32 && word > 8;
        let follows_call =
            |&word: &u64| self.virtual_bytes(word - 8).is_some_and(|before| arch.is_call(before));
        link.into_iter().chain(words).filter(is_near).filter(follows_call).take(CALLERS).collect()
    }

    fn print(&self, line: &Line) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "{}", line.json());
        let _ = out.flush();
    }
}
