//! A platform with another [`Lifetime`].

use std::marker::PhantomData;

use shootdown::soft::Platform;
use shootdown::{CpuId, Lifetime};

pub(crate) const HANDOFF: u8 = 0;
pub(crate) const SHOOT: u8 = 1;
pub(crate) const COUNTED: u8 = 2;

/// The platform `P`, with `LIFETIME` instead of its own lifetime.
pub(crate) struct With<P, const LIFETIME: u8>(PhantomData<fn() -> P>);

impl<P: Platform, const LIFETIME: u8> Platform for With<P, LIFETIME> {
    type Word = P::Word;
    type Frame = P::Frame;
    const LIFETIME: Lifetime = match LIFETIME {
        HANDOFF => Lifetime::Handoff,
        SHOOT => Lifetime::Shoot,
        COUNTED => Lifetime::Counted,
        _ => panic!("no such lifetime"),
    };
    fn fence() {
        P::fence();
    }
    fn spin_hint() {
        P::spin_hint();
    }
    fn cpu() -> CpuId {
        P::cpu()
    }
    fn set_cpu(cpu: CpuId) {
        P::set_cpu(cpu);
    }
}
