//! Designs by name.

use std::fmt;
use std::str::FromStr;

use crate::design::{Design, Purpose};

/// Every design, in the order in which lists show them. To add a design, add its constant here.
const ALL: &[Design] = &[
    Design::ARC_3_9,
    Design::ARC_RANGED,
    Design::ARM64,
    Design::ARM64_PER_PAGE,
    Design::ARM64_5_6,
    Design::ARM64_SKIP,
    Design::ARM64_TLBID,
    Design::RISCV,
    Design::RISCV_PER_PAGE,
    Design::LINUX_INVLPGB,
    Design::LINUX_7_0_PV,
    Design::LINUX_LUF,
    Design::SHOOTDOWN_INTERRUPTS,
    Design::SHOOTDOWN_BROADCASTS,
    Design::SHOOTDOWN_EARLY_ANSWERS,
    Design::SHOOTDOWN_REUSE,
    Design::UNMAP_4_2,
    Design::UNMAP_BATCHED,
    Design::LATR,
    Design::ABIS,
    Design::SHOOTDOWN_REPLICAS,
    Design::NAIVE,
    Design::LINUX_4_12,
    Design::LINUX_4_14,
    Design::LINUX_6_12,
    Design::LINUX_7_0,
    Design::LINUX_7_3,
    Design::LINUX_UNCOUNTED,
    Design::POWERPC_COUNTED,
    Design::POWERPC_SHOOT,
    Design::LINUX_HAZARD,
    Design::SHOOTDOWN_ALONE,
    Design::SHOOTDOWN,
];

/// All designs that have a name.
#[must_use]
pub fn registry() -> &'static [Design] {
    ALL
}

/// The designs of one purpose, in the order of the registry.
pub fn designs_for(purpose: Purpose) -> impl Iterator<Item = Design> + Clone {
    ALL.iter().copied().filter(move |design| design.purpose == purpose)
}

/// The error for a name that no design has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDesign(pub String);

impl fmt::Display for UnknownDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no design `{}`", self.0.escape_debug())
    }
}

impl std::error::Error for UnknownDesign {}

impl FromStr for Design {
    type Err = UnknownDesign;

    fn from_str(text: &str) -> Result<Self, UnknownDesign> {
        let found = ALL.iter().copied().find(|design| design.name() == text);
        found.ok_or_else(|| UnknownDesign(text.to_owned()))
    }
}
