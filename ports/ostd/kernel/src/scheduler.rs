//! A scheduler whose tasks stay on their CPU and take turns, with an idle task on each CPU.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ostd::cpu::{CpuId, PinCurrentCpu, num_cpus};
use ostd::mm::VmSpace;
use ostd::sync::SpinLock;
use ostd::task::scheduler::{
    EnqueueFlags, LocalRunQueue, Scheduler, UpdateFlags, inject_scheduler,
};
use ostd::task::{Task, TaskOptions, disable_preempt, halt_cpu, inject_post_schedule_handler};

use crate::gate::Gate;

/// The data of a task.
struct Info {
    cpu: usize,
    /// The process's space; `None` for a kernel thread.
    space: Option<Arc<VmSpace>>,
    is_idle: bool,
    /// Set under the lock of the CPU's queue.
    has_ended: AtomicBool,
}

fn info(task: &Task) -> &Info {
    task.data().downcast_ref().expect("every task is spawned here")
}

/// The queue of one CPU.
#[derive(Default)]
struct Queue {
    current: Option<Arc<Task>>,
    ready: VecDeque<Arc<Task>>,
    /// Runs when no other task is ready.
    idle: Option<Arc<Task>>,
}

struct Pinned(Vec<SpinLock<Queue>>);

impl Scheduler for Pinned {
    fn enqueue(&self, task: Arc<Task>, _: EnqueueFlags) -> Option<CpuId> {
        let &Info { cpu, is_idle, ref has_ended, .. } = info(&task);
        let mut queue = self.0[cpu].disable_irq().lock();
        // The framework's `Waker` tells a task that it is woken, and enqueues it later. A task that
        // has not slept may have ended by then, and would run on after its end.
        if has_ended.load(Relaxed) {
            return None;
        }
        let id = CpuId::try_from(cpu).expect("tasks are spawned on CPUs that exist");
        // A task that is woken before it sleeps is still in its queue, or current.
        task.schedule_info().cpu.set_if_is_none(id).ok()?;
        if is_idle {
            queue.idle = Some(task);
            return None;
        }
        queue.ready.push_back(task);
        queue.current.as_ref().is_none_or(|current| info(current).is_idle).then_some(id)
    }

    fn local_rq_with(&self, f: &mut dyn FnMut(&dyn LocalRunQueue)) {
        let _pinned = disable_preempt();
        f(&*self.0[this_cpu()].disable_irq().lock());
    }

    fn mut_local_rq_with(&self, f: &mut dyn FnMut(&mut dyn LocalRunQueue)) {
        let _pinned = disable_preempt();
        f(&mut *self.0[this_cpu()].disable_irq().lock());
    }
}

impl LocalRunQueue for Queue {
    fn current(&self) -> Option<&Arc<Task>> {
        self.current.as_ref()
    }

    fn update_current(&mut self, flags: UpdateFlags) -> bool {
        match flags {
            UpdateFlags::Tick => false,
            UpdateFlags::Yield => !self.ready.is_empty() || self.current.is_none(),
            UpdateFlags::Wait => true,
            UpdateFlags::Exit => {
                let current = self.current.as_ref().expect("a task that ends is current");
                info(current).has_ended.store(true, Relaxed);
                true
            }
        }
    }

    fn try_pick_next(&mut self) -> Option<&Arc<Task>> {
        let idle = || self.current.is_none().then(|| self.idle.clone())?;
        let next = self.ready.pop_front().or_else(idle)?;
        let before = self.current.replace(next);
        self.ready.extend(before.filter(|task| !info(task).is_idle));
        self.current.as_ref()
    }

    fn dequeue_current(&mut self) -> Option<Arc<Task>> {
        self.current.take().inspect(|task| task.schedule_info().cpu.set_to_none())
    }
}

/// Makes this the framework's scheduler. Call this before the first task is spawned.
pub fn inject() {
    let queues = (0..num_cpus()).map(|_| SpinLock::new(Queue::default())).collect();
    inject_scheduler(Box::leak(Box::new(Pinned(queues))));
    inject_post_schedule_handler(|| {
        if let Some(task) = Task::current()
            && let Some(space) = &info(&task).space
        {
            space.activate();
        }
    });
}

/// Returns the number of the CPU that runs this call.
pub fn this_cpu() -> usize {
    u32::from(disable_preempt().current_cpu()) as usize
}

/// Spawns the task of a CPU that has nothing to do.
pub fn spawn_idle(cpu: usize) {
    spawn_with(Info { cpu, space: None, is_idle: true, has_ended: AtomicBool::new(false) }, || {
        loop {
            Task::yield_now();
            halt_cpu();
        }
    });
}

/// Spawns a thread of a process on a CPU, or a kernel thread.
pub fn spawn(cpu: usize, space: Option<&Arc<VmSpace>>, body: impl FnOnce() + Send + 'static) {
    let has_ended = AtomicBool::new(false);
    spawn_with(Info { cpu, space: space.cloned(), is_idle: false, has_ended }, body);
}

fn spawn_with(info: Info, body: impl FnOnce() + Send + 'static) {
    TaskOptions::new(body).data(info).spawn().expect("there is memory for a stack");
}

/// Runs a thread of a process on a CPU, and sleeps until its end.
pub fn run_on(cpu: usize, space: &Arc<VmSpace>, body: impl FnOnce(&Arc<VmSpace>) + Send + 'static) {
    let end = Arc::new(Gate::default());
    let (its_space, its_end) = (space.clone(), end.clone());
    spawn(cpu, Some(space), move || {
        body(&its_space);
        drop(its_space);
        its_end.arrive();
    });
    end.wait_for(1);
}
