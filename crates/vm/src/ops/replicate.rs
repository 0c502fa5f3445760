//! Replicas: loading them, making them, and linking tables into them. See
//! [`replicas`](crate::replicas).

#![expect(unsafe_code, reason = "switching is unsafe, and forwards its contract")]

use shootdown::Root;

use crate::coherence::{Flush, ReclaimFlush, Replication, Scheduling};
use crate::platform::{Frame, FrameUse, OutOfMemory, Platform};
use crate::replicas::Replica;
use crate::space::{AddressSpace, count};
use crate::system::{Coherent, System};

impl<S: System> AddressSpace<S> {
    /// [Switches](Scheduling::switch) to the space on this CPU: to the CPU's replica, if it has
    /// one. The thread must stay on this CPU until the call returns. If there are replicas, this
    /// takes the space's [`IndexLock`](Platform::IndexLock) for reading.
    ///
    /// A kernel whose policy has no [replicas](Replication) may call
    /// [`Scheduling::switch`] with [`coherent`](Self::coherent) instead, which is the same then.
    ///
    /// # Safety
    ///
    /// The contract of [`Scheduling::switch`].
    pub unsafe fn switch_here(&self) {
        // SAFETY: the caller fulfils the same contract. `exit` retires the replicas also.
        self.load_here(|space| unsafe { self.vm.coherence.switch(space) });
    }

    /// [Returns to user mode](Scheduling::return_to_user) in the space on this CPU: in the CPU's
    /// replica, if it has one. The thread must stay on this CPU until the call returns.
    ///
    /// # Safety
    ///
    /// The contract of [`Scheduling::return_to_user`].
    pub unsafe fn return_to_user_here(&self) {
        // SAFETY: as in `switch_here`.
        self.load_here(|space| unsafe { self.vm.coherence.return_to_user(space) });
    }

    /// Calls `load` with the record of the tables that this CPU should load.
    fn load_here(&self, load: impl FnOnce(&Coherent<S>)) {
        let replicas = &self.mappings.replicas;
        if !replicas.are_used() {
            return load(&self.mappings.coherent);
        }
        let cpu = self.vm.platform.cpu();
        if let Some(replica) = replicas.to_load(cpu) {
            return load(&replica.coherent);
        }
        load(&self.mappings.coherent);
        if let Some(replica) = replicas.of(cpu) {
            replicas.abandon(&replica);
        }
    }

    /// The root of the tables that `cpu` loads.
    pub fn root_on(&self, cpu: usize) -> Root {
        match self.mappings.replicas.to_load(cpu) {
            Some(replica) => replica.root(),
            None => self.root(),
        }
    }

    /// Makes a replica for this CPU, if it should have one and has none. Does nothing if there is
    /// no memory.
    pub(crate) fn make_replica(&self) {
        let (vm, replicas) = (&self.vm, &self.mappings.replicas);
        // A page that is flushed alone is announced until its flush, and not until the batch's.
        let is_possible = vm.policy.replication != Replication::Never
            && (vm.rmap.is_none() || vm.policy.reclaim_flush == ReclaimFlush::Batched);
        if !is_possible {
            return;
        }
        let cpu = vm.platform.cpu();
        let is_used_elsewhere = || vm.coherence.is_used_elsewhere(&self.mappings.coherent);
        if !replicas.are_wanted_by(cpu, is_used_elsewhere) || replicas.of(cpu).is_some() {
            return;
        }
        let Ok(root) = vm.platform.allocate(FrameUse::Table) else { return };
        let coherent = vm.coherence.replica(&self.mappings.coherent, Root(root.address()));
        if coherent.is_none() {
            replicas.give_up();
        }
        // If the thread was moved, another thread may have made the CPU's replica.
        if coherent.is_some_and(|coherent| replicas.add(Replica::new(cpu, root, coherent))) {
            count(&self.counters.replicas, 1);
            count(&self.counters.replica_tables, 1);
        } else {
            vm.platform.free_table(root);
        }
    }

    /// Links the table of the last level for `address` into the replica of this CPU, if it loads
    /// one. The area at `address` must be locked. Returns `true` if it was not linked before.
    ///
    /// If the thread is moved, it links in the replica of the CPU that it has come from, which does
    /// no harm, and faults again.
    pub(crate) fn link(&self, address: u64, table: Frame) -> Result<bool, OutOfMemory> {
        let (vm, replicas) = (&self.vm, &self.mappings.replicas);
        if !replicas.are_used() {
            return Ok(false);
        }
        let cpu = vm.platform.cpu();
        let Some(replica) = replicas.to_load(cpu) else { return Ok(false) };
        let new_table = || {
            let table = vm.allocate(FrameUse::Table)?;
            count(&self.counters.replica_tables, 1);
            Ok(table)
        };
        let is_new = replica.link(&vm.platform, address, table, new_table)?;
        if is_new {
            count(&self.counters.linked, 1);
        }
        Ok(is_new)
    }

    /// Records a fault for which nothing had to be done but to make a link.
    pub(crate) fn note_link_fault(&self) {
        count(&self.counters.link_faults, 1);
        self.mappings.replicas.note_link_fault(&self.vm.coherence, self.vm.platform.cpu());
    }

    /// Gives up the replicas, because a replica has no links to large pages.
    pub(crate) fn give_up_replicas(&self) {
        if self.vm.policy.replication != Replication::Never {
            self.mappings.replicas.give_up();
        }
    }
}
