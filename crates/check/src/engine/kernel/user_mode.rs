//! CPUs in user mode, which flushes of the kernel's pages do not interrupt.

use shootdown::PinnedCpu;

use super::{EngineMachine, Kernel};
use crate::machine::{HostileMachine, with_machine};

type Pin<'k, const LIFETIME: u8, const WORDS: usize> =
    PinnedCpu<'k, EngineMachine<LIFETIME, WORDS>>;

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Stays in user mode for a while, or sleeps if the CPU runs no thread. Interrupts may come.
    pub(super) fn stay_in_user(&self) {
        self.pinned(|pin| self.enter_user(pin));
        if self.current[with_machine(HostileMachine::cpu)].get().is_some() {
            self.engine.machine().stay_in_user_mode();
        }
        self.pinned(|pin| self.enter_kernel(pin));
    }

    /// Calls `handle` on a CPU that has been interrupted, after it has entered the kernel.
    pub(super) fn in_kernel<'k>(
        &'k self,
        cpu: usize,
        pin: &Pin<'k, LIFETIME, WORDS>,
        handle: impl FnOnce(&Pin<'k, LIFETIME, WORDS>),
    ) {
        let is_in_user = self.in_user[cpu].get();
        if is_in_user {
            self.enter_kernel(pin);
        }
        handle(pin);
        if is_in_user {
            self.enter_user(pin);
        }
    }

    fn enter_user<'k>(&'k self, pin: &Pin<'k, LIFETIME, WORDS>) {
        with_machine(|machine| {
            self.in_user[machine.cpu()].set(true);
            machine.set_in_user(true);
        });
        pin.enter_user();
    }

    fn enter_kernel<'k>(&'k self, pin: &Pin<'k, LIFETIME, WORDS>) {
        pin.enter_kernel();
        with_machine(|machine| {
            machine.set_in_user(false);
            self.in_user[machine.cpu()].set(false);
        });
    }
}
