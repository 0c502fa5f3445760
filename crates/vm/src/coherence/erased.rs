//! The coherence traits as one object-safe trait: a memory manager that is compiled once can use
//! any coherence.

#![expect(unsafe_code, reason = "two methods are unsafe, and forward their contract")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::convert::identity;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};

use super::{
    Batching, Change, Coherence, Defer, Flush, Later, Lifetimes, Policy, Retired, Scheduling,
};

/// A coherence of any type.
pub type ErasedCoherence = Box<dyn DynCoherence>;
/// A batch of any coherence. `None` stands for an empty one.
pub type ErasedBatch = Option<Box<dyn Any>>;
/// A flush of any coherence, sent or deferred.
type ErasedLater = Later<Box<dyn Any>, Box<dyn Any>>;

/// Declares the methods of [`DynCoherence`]. By default each method forwards to the inner
/// coherence. For every type that implements [`Coherence`], it calls the method of the same name,
/// with the arguments and the result converted.
macro_rules! erase {
    ($(
        $(#[$doc:meta])*
        $trait:ident::$method:ident($($arg:ident: $type:ty = $typed:expr),*)
            $(-> $returned:ty = $erase:expr)?;
    )*) => {
        /// A [`Coherence`] behind a pointer, with the types of its spaces, flushes and batches
        /// erased.
        ///
        /// Every type that implements [`Coherence`] implements this trait. A decorator implements
        /// [`inner`](Self::inner) and the methods that it changes; the other methods forward.
        ///
        /// # Panics
        ///
        /// The methods panic if they are given a space, flush or batch of another coherence.
        pub trait DynCoherence {
            /// The coherence that the methods forward to by default.
            fn inner(&self) -> &dyn DynCoherence;

            $(
                #[doc = concat!("See [`", stringify!($trait), "::", stringify!($method), "`].")]
                $(#[$doc])*
                fn $method(&self $(, $arg: $type)*) $(-> $returned)? {
                    self.inner().$method($($arg),*)
                }
            )*

            /// See [`Scheduling::switch`].
            ///
            /// # Safety
            ///
            /// The contract of [`Scheduling::switch`].
            unsafe fn switch(&self, space: &dyn Any) {
                // SAFETY: the caller fulfils the same contract.
                unsafe { self.inner().switch(space) }
            }

            /// See [`Scheduling::return_to_user`].
            ///
            /// # Safety
            ///
            /// The contract of [`Scheduling::return_to_user`].
            unsafe fn return_to_user(&self, space: &dyn Any) {
                // SAFETY: the caller fulfils the same contract.
                unsafe { self.inner().return_to_user(space) }
            }
        }

        impl<C: Coherence + 'static> DynCoherence for C {
            fn inner(&self) -> &dyn DynCoherence {
                self
            }

            $(
                fn $method(&self $(, $arg: $type)*) $(-> $returned)? {
                    $($erase)? ($trait::$method(self $(, $typed)*))
                }
            )*

            unsafe fn switch(&self, space: &dyn Any) {
                // SAFETY: the caller fulfils the same contract.
                unsafe { Scheduling::switch(self, typed(space)) }
            }

            unsafe fn return_to_user(&self, space: &dyn Any) {
                // SAFETY: the caller fulfils the same contract.
                unsafe { Scheduling::return_to_user(self, typed(space)) }
            }
        }
    };
}

erase! {
    Flush::policy() -> Policy = identity;
    Flush::space(root: Root = root) -> Box<dyn Any> = boxed;
    Flush::flush(space: &dyn Any = typed(space), change: &Change = change) -> Box<dyn Any> = boxed;
    Flush::replica(of: &dyn Any = typed(of), root: Root = root)
        -> Option<Box<dyn Any>> = boxed_some;
    Flush::flush_replicas(
        space: &dyn Any = typed(space),
        replicas: &[&dyn Any] = &typed_all(replicas),
        change: &Change = change
    ) -> Box<dyn Any> = boxed;
    Flush::flush_also(
        pending: &mut Box<dyn Any> = typed_mut(pending),
        replica: &dyn Any = typed(replica),
        change: &Change = change
    );
    Flush::drop_replica(replica: &dyn Any = typed(replica));
    Flush::notifications_max(space: &dyn Any = typed(space)) -> Option<usize> = identity;
    Flush::is_used_elsewhere(space: &dyn Any = typed(space)) -> bool = identity;
    Flush::gather_begins(space: &dyn Any = typed(space));
    Flush::gather_ends(space: &dyn Any = typed(space));
    Flush::is_nested(space: &dyn Any = typed(space)) -> bool = identity;
    Flush::wait(pending: Box<dyn Any> = owned(pending)) -> Horizon = identity;
    Defer::flush_later(space: &dyn Any = typed(space), change: &Change = change)
        -> ErasedLater = erased_later;
    Defer::is_complete(deferred: &dyn Any = typed(deferred)) -> bool = identity;
    Defer::complete(deferred: Box<dyn Any> = owned(deferred));
    ///
    /// # Errors
    ///
    /// Those of the method.
    Batching::add_space(batch: &mut ErasedBatch = batch_of(batch), space: &dyn Any = typed(space))
        -> Result<(), BatchIsFull> = identity;
    Batching::unmapped(
        batch: &mut ErasedBatch = batch_of(batch),
        space: &dyn Any = typed(space),
        address: u64 = address,
        stale_writes: StaleWrites = stale_writes
    );
    ///
    /// # Errors
    ///
    /// Those of the method.
    Batching::unmapped_in_replica(
        batch: &mut ErasedBatch = batch_of(batch),
        replica: &dyn Any = typed(replica),
        address: u64 = address
    ) -> Result<(), BatchIsFull> = identity;
    Batching::flush_batch(batch: ErasedBatch = batch.map(owned).unwrap_or_default());
    ///
    /// # Errors
    ///
    /// Those of the method.
    Batching::add_clean_space(
        batch: &mut ErasedBatch = batch_of(batch),
        space: &dyn Any = typed(space)
    ) -> Result<(), BatchIsFull> = identity;
    Batching::clean_unmapped(
        batch: &mut ErasedBatch = batch_of(batch),
        space: &dyn Any = typed(space),
        address: u64 = address
    );
    Batching::defer_batch(batch: ErasedBatch = batch.map(owned).unwrap_or_default())
        -> Option<Box<dyn Any>> = boxed_some;
    Batching::is_batched(space: &dyn Any = typed(space)) -> bool = identity;
    Lifetimes::retire(space: &dyn Any = typed(space)) -> Retired = identity;
    Lifetimes::take_dead() -> Option<Root> = identity;
    Lifetimes::reap();
    Lifetimes::flush_walkers(space: &dyn Any = typed(space)) -> Horizon = identity;
    Scheduling::online();
    Scheduling::enter_kernel();
    Scheduling::enter_lazy();
    Scheduling::leave_space();
    Scheduling::interrupt();
    Scheduling::tick();
}

fn typed<T: 'static>(erased: &dyn Any) -> &T {
    erased.downcast_ref().expect("the value belongs to this coherence")
}

fn owned<T: 'static>(erased: Box<dyn Any>) -> T {
    *erased.downcast().expect("the value belongs to this coherence")
}

fn batch_of<B: Default + 'static>(batch: &mut ErasedBatch) -> &mut B {
    let batch = batch.get_or_insert_with(|| Box::new(B::default()));
    batch.downcast_mut().expect("the batch belongs to this coherence")
}

fn typed_mut<T: 'static>(erased: &mut Box<dyn Any>) -> &mut T {
    erased.downcast_mut().expect("the value belongs to this coherence")
}

fn typed_all<'a, T: 'static>(erased: &[&'a dyn Any]) -> Vec<&'a T> {
    erased.iter().copied().map(typed).collect()
}

fn boxed_some<T: 'static>(value: Option<T>) -> Option<Box<dyn Any>> {
    value.map(boxed)
}

fn boxed<T: 'static>(value: T) -> Box<dyn Any> {
    Box::new(value)
}

fn erased_later<P: 'static, D: 'static>(later: Later<P, D>) -> ErasedLater {
    match later {
        Later::Sent(pending) => Later::Sent(boxed(pending)),
        Later::Deferred(deferred) => Later::Deferred(boxed(deferred)),
    }
}

impl<C: Coherence + 'static> From<C> for ErasedCoherence {
    fn from(coherence: C) -> Self {
        Box::new(coherence)
    }
}
