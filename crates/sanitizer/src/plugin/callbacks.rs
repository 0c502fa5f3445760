//! QEMU's callbacks, each as short as possible.

#![expect(unsafe_code, reason = "is called by a C interface")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use super::api::{
    ExecuteCallback, Id, Info, MemoryCallback, MemoryInfo, NO_REGISTERS, NOT_EQUAL, Opaque,
    READ_WRITE, READS_REGISTERS,
};
use super::options::{Hook, Options};
use super::places::Places;
use super::qemu::Qemu;
use crate::arch::{self, Instruction, Operand, Privilege};
use crate::cpu::Use;
use crate::hook::{self, Unit};
use crate::report::Line;
use crate::sanitizer::{CPUS_MAX, Event, Host as _, Sanitizer};

/// The version of the interface that the plugin was written for. QEMU refuses the plugin if its own
/// oldest version is a later one.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, unreachable_pub, reason = "QEMU looks for this name")]
pub static qemu_plugin_version: c_int = 4;

/// All state of the plugin.
struct Plugin {
    sanitizer: Sanitizer<Qemu>,
    /// By address. They stay where they are: QEMU has pointers to them.
    hooks: HashMap<u64, Hooked>,
    effective: Interned,
    cpus: Box<[PerCpu]>,
}

/// State of a CPU of its own thread.
#[derive(Debug, Default)]
struct PerCpu {
    /// `true` if the registers must be read before the next block. The first time, they must.
    has_selected: AtomicBool,
    /// `true` if the CPU has resumed, and not executed an instruction that selects tables before.
    has_resumed: AtomicBool,
    places: Places,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// QEMU loads the plugin. The result is 0 if it can work.
///
/// # Safety
///
/// QEMU calls it once, with strings of C.
#[unsafe(no_mangle)]
#[allow(unreachable_pub, reason = "QEMU looks for this name")]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (info, arguments): (&Info, Vec<String>) = unsafe {
        let text = |at| CStr::from_ptr(*arguments.add(at)).to_string_lossy().into_owned();
        (&*info, (0..count as usize).map(text).collect())
    };
    // SAFETY: as above.
    let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
    match install(id, info, &target, &arguments) {
        Ok(()) => 0,
        Err(cause) => {
            eprintln!("shootdown sanitize: {cause}");
            1
        }
    }
}

fn install(id: Id, info: &Info, target: &str, arguments: &[String]) -> Result<(), String> {
    let arguments = arguments.iter().map(String::as_str);
    let options = Options::parse(arguments).map_err(|wrong| format!("argument {wrong}"))?;
    let qemu = Qemu::new(options.out.as_deref())?;
    let refuse = |qemu: &Qemu, cause: String| {
        qemu.print(&Line::Refused { cause: cause.clone() });
        Err(cause)
    };
    if !info.system_emulation {
        return refuse(&qemu, "QEMU emulates a program, not a machine".to_owned());
    }
    let Some(arch) = arch::named(target) else {
        return refuse(&qemu, format!("the architecture {target} is not known"));
    };
    let in_registers = arch.facts().arguments.len();
    if options.hooks.iter().any(|hook| hook.event.arguments() > in_registers) {
        let cause = format!("a hook names an argument after the {in_registers} in registers");
        return refuse(&qemu, cause);
    }
    let mut hooks: HashMap<u64, Hooked> = HashMap::new();
    for (index, hook) in options.hooks.into_iter().enumerate() {
        let pc = hook.address;
        let at = hooks.entry(pc).or_insert_with(|| Hooked { pc, hooks: Vec::new() });
        at.hooks.push((index, hook));
    }
    let plugin = Plugin {
        sanitizer: Sanitizer::new(arch, qemu, options.core),
        hooks,
        effective: Interned::default(),
        cpus: (0..CPUS_MAX).map(|_| PerCpu::default()).collect(),
    };
    let Plugin { sanitizer, .. } = PLUGIN.get_or_init(|| plugin);
    let api = &sanitizer.host().api;
    // SAFETY: the callbacks have the types of the interface.
    unsafe {
        (api.on_vcpu_init)(id, begin_cpu);
        (api.on_vcpu_resume)(id, resume_cpu);
        (api.on_translate)(id, translate);
        (api.on_exit)(id, end, ptr::null_mut());
    }
    std::thread::spawn(|| {
        while let Some(plugin) = PLUGIN.get() {
            std::thread::sleep(Duration::from_secs(1));
            let totals = plugin.sanitizer.totals();
            plugin.sanitizer.host().print(&Line::Progress(totals));
        }
    });
    Ok(())
}

extern "C" fn begin_cpu(_: Id, cpu: c_uint) {
    let Some(plugin) = PLUGIN.get() else { return };
    let sanitizer = &plugin.sanitizer;
    let (cpu, host) = (cpu as usize, sanitizer.host());
    if cpu >= CPUS_MAX {
        let cause = format!("there are more than {CPUS_MAX} CPUs");
        return host.print(&Line::Refused { cause });
    }
    if let Err(name) = host.find_registers(cpu, sanitizer.arch().facts()) {
        let cause = format!("this QEMU does not show the register {name}");
        return host.print(&Line::Refused { cause });
    }
    sanitizer.add_cpu(cpu);
    plugin.select(cpu);
}

/// A CPU continues after it has halted, perhaps from a reset.
extern "C" fn resume_cpu(_: Id, cpu: c_uint) {
    if let Some(plugin) = PLUGIN.get() {
        let cpu = cpu as usize;
        if let Some(of_cpu) = plugin.cpus.get(cpu) {
            let has_selected = of_cpu.has_selected.load(Ordering::SeqCst);
            of_cpu.has_resumed.fetch_or(!has_selected, Ordering::SeqCst);
        }
        plugin.select(cpu);
    }
}

extern "C" fn end(_: Id, _: Opaque) {
    if let Some(Plugin { sanitizer, .. }) = PLUGIN.get() {
        sanitizer.host().print(&Line::Ended(sanitizer.totals()));
    }
}

thread_local! {
    /// The CPU of this thread's last callback. Translation does not name its CPU.
    static CPU: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// An instruction of the kernel with a TLB's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Effective {
    pc: u64,
    instruction: Instruction,
}

/// The instructions that QEMU has pointers to. It translates a block again after each flush of its
/// code, and may execute a block at any later time: each instruction is kept once, for ever.
#[derive(Debug, Default)]
struct Interned(Mutex<HashSet<Box<Effective>>>);

impl Interned {
    fn place(&self, effective: Effective) -> *const Effective {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        &raw const **all.get_or_insert_with(&effective, |&it| Box::new(it))
    }
}

/// A place where hooks are called.
struct Hooked {
    pc: u64,
    hooks: Vec<(usize, Hook)>,
}

/// A block is translated. It is executed with the privilege of now: QEMU keeps a translation for
/// each.
extern "C" fn translate(_: Id, block: Opaque) {
    let Some(plugin) = PLUGIN.get() else { return };
    let sanitizer = &plugin.sanitizer;
    let (host, arch) = (sanitizer.host(), sanitizer.arch());
    let api = &host.api;
    let privilege = host.privilege(CPU.get(), arch);
    // SAFETY: the block is QEMU's, and the callbacks have the types of the interface.
    unsafe {
        let first = (api.block_address)(block);
        let in_user_mode = privilege == Privilege::User;
        let watches = privilege != Privilege::Other;
        let key = |pc: u64| pc >> 12 << 1 | u64::from(in_user_mode);
        let fetched: ExecuteCallback = if in_user_mode { fetch::<true> } else { fetch::<false> };
        let accessed: MemoryCallback = if in_user_mode { access::<true> } else { access::<false> };
        let (flags, page) = (READS_REGISTERS, host.page);
        if watches {
            let data = first as Opaque;
            (api.on_block_if)(block, fetched, flags, NOT_EQUAL, page, key(first), data);
        }
        let mut last_page = first >> 12;
        for index in 0..(api.block_len)(block) {
            let instruction = (api.block_instruction)(block, index);
            let pc = (api.instruction_address)(instruction);
            let mut bytes = [0; 16];
            let len = (api.instruction_data)(instruction, bytes.as_mut_ptr(), bytes.len());
            if watches && pc >> 12 != last_page {
                last_page = pc >> 12;
                let data = pc as Opaque;
                (api.on_execute_if)(instruction, fetched, flags, NOT_EQUAL, page, key(pc), data);
            }
            if let Some(hooked) = plugin.hooks.get(&pc).filter(|_| !in_user_mode) {
                let data = ptr::from_ref(hooked).cast_mut().cast();
                (api.on_execute)(instruction, call_hooks, flags, data);
            }
            if let Some(decoded) = arch.decode(&bytes[..len.min(16)], pc)
                && !in_user_mode
            {
                let effective = Effective { pc, instruction: decoded };
                let data = plugin.effective.place(effective).cast_mut().cast();
                (api.on_execute)(instruction, execute, flags, data);
            }
            if watches {
                let data = pc as Opaque;
                (api.on_memory)(instruction, accessed, NO_REGISTERS, READ_WRITE, data);
            }
        }
    }
}

extern "C" fn access<const USER: bool>(cpu: c_uint, info: MemoryInfo, address: u64, pc: Opaque) {
    let Some(plugin) = PLUGIN.get() else { return };
    let sanitizer = &plugin.sanitizer;
    // SAFETY: the word is QEMU's.
    let is_store = unsafe { (sanitizer.host().api.is_store)(info) };
    let wanted = if is_store { Use::Store } else { Use::Load };
    let cpu = cpu as usize;
    if sanitizer.is_fast(cpu, address, wanted) {
        return;
    }
    CPU.set(cpu);
    // SAFETY: as above.
    let bytes = 1 << unsafe { (sanitizer.host().api.size_shift)(info) };
    sanitizer.access(plugin.event(cpu, pc as u64, USER), address, bytes, wanted);
}

extern "C" fn fetch<const USER: bool>(cpu: c_uint, pc: Opaque) {
    if let Some(plugin) = PLUGIN.get() {
        plugin.fetch(cpu as usize, pc as u64, USER);
    }
}

/// Before an instruction that concerns TLBs.
extern "C" fn execute(cpu: c_uint, data: Opaque) {
    let Some(plugin) = PLUGIN.get() else { return };
    // SAFETY: `translate` gave it, and the plugin keeps it.
    let Effective { pc, instruction } = unsafe { &*data.cast::<Effective>() };
    let (sanitizer, cpu) = (&plugin.sanitizer, cpu as usize);
    CPU.set(cpu);
    let host = sanitizer.host();
    let facts = sanitizer.arch().facts();
    let operands = instruction.operands.map(|operand| host.operand(cpu, facts, operand));
    let read = |address| host.read_virtual(address);
    let context = sanitizer.context(cpu);
    let effect = sanitizer.arch().execute(instruction.operation, operands, &context, &read);
    if let Some(invalidation) = effect.invalidation {
        let event = plugin.event(cpu, *pc, false);
        sanitizer.invalidate(event, &invalidation, effect.is_broadcast);
    }
    if effect.selects_tables {
        plugin.select(cpu);
    }
}

extern "C" fn call_hooks(cpu: c_uint, data: Opaque) {
    let Some(plugin) = PLUGIN.get() else { return };
    // SAFETY: `translate` gave it, and the plugin keeps it.
    let Hooked { pc, hooks } = unsafe { &*data.cast::<Hooked>() };
    let cpu = cpu as usize;
    CPU.set(cpu);
    for (index, hook) in hooks {
        plugin.call_hook(plugin.event(cpu, *pc, false), *index, hook.event);
    }
}

impl Plugin {
    /// Has the registers of the CPU read before its next block.
    fn select(&self, cpu: usize) {
        if let Some(of_cpu) = self.cpus.get(cpu) {
            of_cpu.has_selected.store(true, Ordering::SeqCst);
            self.sanitizer.host().attend(cpu);
        }
    }

    /// An event at an instruction that was translated at `pc`, in the CPU's last block.
    fn event(&self, cpu: usize, pc: u64, in_user_mode: bool) -> Event {
        let pc = self.cpus.get(cpu).map_or(pc, |of_cpu| of_cpu.places.within(pc));
        Event { cpu, pc, in_user_mode }
    }

    fn fetch(&self, cpu: usize, pc: u64, in_user_mode: bool) {
        CPU.set(cpu);
        let (host, arch) = (self.sanitizer.host(), self.sanitizer.arch());
        let Some(of_cpu) = self.cpus.get(cpu) else { return };
        if let Some(page) = host.page_of(cpu) {
            // See `Qemu::attend`.
            page.store(pc >> 12 << 1 | u64::from(in_user_mode), Ordering::SeqCst);
        }
        if of_cpu.has_selected.load(Ordering::Relaxed)
            && of_cpu.has_selected.swap(false, Ordering::SeqCst)
        {
            let context = host.context(cpu, arch);
            if of_cpu.has_resumed.swap(false, Ordering::SeqCst) {
                self.sanitizer.resume(cpu, context);
            } else {
                self.sanitizer.select_tables(cpu, context);
            }
            of_cpu.places.clear();
        }
        let pc = of_cpu.places.at(pc, || host.register(cpu, arch.facts().pc));
        self.sanitizer.fetch(Event { cpu, pc, in_user_mode });
    }

    fn call_hook(&self, event: Event, index: usize, called: hook::Event) {
        let host = self.sanitizer.host();
        let facts = self.sanitizer.arch().facts();
        let argument = |number: usize| {
            host.operand(event.cpu, facts, Operand::Register(facts.arguments[number]))
        };
        match called {
            hook::Event::Settle => self.sanitizer.settle(event, index),
            hook::Event::Mark => self.sanitizer.mark(argument(0)),
            hook::Event::Reuse(number, unit, order) => {
                let value = argument(number);
                let address = match unit {
                    Unit::Physical => Some(value),
                    Unit::Number => Some(value << 12),
                    Unit::Virtual => self.sanitizer.translate(event.cpu, value),
                    // Kernels may free nothing: a null pointer.
                    Unit::Descriptor(base, bytes) => {
                        (value != 0).then(|| value.wrapping_sub(base) / bytes << 12)
                    }
                };
                // More than the largest page is not an order.
                let order = order.map_or(0, |number| argument(number) & 0xff).min(18);
                if let Some(address) = address {
                    self.sanitizer.reuse(event, address, 1 << order, index);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_translated_again_has_one_place() {
        let interned = Interned::default();
        let arch = arch::named("riscv64").expect("it is known");
        let place = |pc, word: u32| {
            let instruction = arch.decode(&word.to_le_bytes(), pc).expect("a fence");
            interned.place(Effective { pc, instruction })
        };
        let first = place(0x1000, 0x1200_0073);
        assert_ne!(place(0x1004, 0x1200_0073), first);
        assert_ne!(place(0x1000, 0x1205_0073), first);
        assert_eq!(place(0x1000, 0x1200_0073), first);
        assert_eq!(interned.0.lock().expect("no panic").len(), 3);
    }
}
