//! `LoongArch64`, on QEMU's machine `virt`.
//!
//! # Starting it
//!
//! ```text
//! RUSTC_BOOTSTRAP=1 cargo build -Zbuild-std=core,alloc -Zbuild-std-features=compiler-builtins-mem \
//!     --target loongarch64-unknown-none-softfloat -p shootdown-kernel
//! qemu-system-loongarch64 -M virt -cpu la464 -smp 4 -m 512M -display none -serial stdio -no-reboot \
//!     -kernel target/loongarch64-unknown-none-softfloat/debug/shootdown-kernel \
//!     -device loader,file=LOAD,addr=0x8000000,force-raw=on
//! ```

mod boot;
mod csr;
mod devices;
mod firmware;
mod interrupts;
mod timer;
mod trap;
mod user;
mod walk;
mod windows;

use shootdown::Root;
use shootdown_loongarch64::LoongArch64 as Processor;

use crate::arch::{Architecture, Interrupt, Status, User, UserExit};

/// The architecture that the kernel is built for.
#[derive(Debug)]
pub(crate) enum LoongArch64 {}

// SAFETY: each method is what its module says.
#[expect(unsafe_code, reason = "the promises are the modules'")]
unsafe impl Architecture for LoongArch64 {
    type Processor = Processor;
    type Format = shootdown_vm::LoongArch64;

    const NAME: &'static str = "loongarch64";
    const PHYSICAL_MEMORY: usize = windows::CACHED;

    fn processor() -> Processor {
        Processor::detect()
    }

    fn kernel_root() -> Root {
        boot::EMPTY_ROOT
    }

    /// The kernel is in no table.
    fn prepare_root(_: Root) {}

    fn set_up_cpu(cpu: u32) {
        boot::set_up_cpu(cpu);
    }

    fn start_cpu(cpu: u32, stack_end: usize) {
        interrupts::start_cpu(cpu, stack_end);
    }

    #[inline]
    fn cpu() -> u32 {
        csr::read::<{ csr::CPUID }>() as u32 & 0x1ff
    }

    #[inline]
    fn interrupts_masked() -> bool {
        csr::read::<{ csr::CRMD }>() & interrupts::LET_IN == 0
    }

    #[inline]
    fn mask_interrupts() {
        // SAFETY: what is masked comes later.
        unsafe { csr::write_bits::<{ csr::CRMD }>(interrupts::LET_IN, 0) };
    }

    #[inline]
    fn unmask_interrupts() {
        // SAFETY: our caller is where they may come.
        unsafe { csr::write_bits::<{ csr::CRMD }>(interrupts::LET_IN, interrupts::LET_IN) };
    }

    fn wait_for_interrupt() {
        unsafe extern "C" {
            fn sleep();
        }
        // SAFETY: a function of `trap.s`.
        unsafe { sleep() };
    }

    fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
        interrupts::send(cpus, interrupt);
    }

    fn now_ns() -> u64 {
        timer::now_ns()
    }

    fn set_timer_ns(delay_ns: u64) {
        timer::set_ns(delay_ns);
    }

    unsafe fn new_stack(
        stack_end: usize,
        entry: extern "C" fn(usize) -> !,
        argument: usize,
    ) -> usize {
        // SAFETY: our caller's promise.
        unsafe { user::new_stack(stack_end, entry, argument) }
    }

    unsafe fn switch_stack(from: *mut usize, to: usize) {
        unsafe extern "C" {
            fn switch_stack(from: *mut usize, to: usize);
        }
        // SAFETY: our caller's promise.
        unsafe { switch_stack(from, to) };
    }

    fn run_user(user: &mut User) -> UserExit {
        user::run(user)
    }

    fn user_code() -> &'static [u8] {
        user::code()
    }

    /// Refills load what is there, valid or not, and it stays.
    fn forget_refused(address: u64) {
        Self::processor().forget(address);
    }

    fn write(byte: u8) {
        devices::write(byte);
    }

    /// Both ends look alike from outside: the last line is what tells them apart.
    fn exit(_: Status) -> ! {
        devices::power_off()
    }
}
