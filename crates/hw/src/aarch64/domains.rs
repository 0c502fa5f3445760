//! TLBI domains (`FEAT_TLBID`, Armv9.7): sets of CPUs that an operation can name.
//!
//! An operation on a whole ASID, or on more, has a field TLBID. It then reaches the CPUs of that
//! domain instead of all in the inner shareable domain. Operations on pages have no such field. The
//! CPUs of each domain are fixed by the machine, and firmware describes them. A guest names virtual
//! domains, which the hypervisor maps to the machine's (`VTLBID<n>_EL2`).
//!
//! The registers are encoded as in LLVM and binutils, and `ASIDE1IS` as in a series for openEuler,
//! whose description has TLBID in bits 15:0. Arm's own page on the field was not read, and that
//! number 0 names every CPU follows from compatibility only: check both before the first processor.
//! None was at hand; the encodings are tested on the host, and the protocol on the checker's
//! hostile machine.

use shootdown::{CpuBits, CpuSet, DomainCosts};

use crate::aarch64::operation::TlbiDomain;

/// Number of domains that one flush names at most. Each takes an operation of its own, and beyond
/// some of them one operation to every CPU is faster: the book has a sweep.
pub const DOMAINS_MAX: usize = 4;

/// The domain of each CPU, and what it costs to name one.
///
/// # Promise
///
/// An operation that names the domain of a CPU reaches that CPU, from before the CPU comes online
/// until it is offline. In a guest, that is true of the CPU on which a virtual CPU runs, and a
/// hypervisor empties the TLB of a CPU that a virtual CPU has left, or keeps it in the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainMap {
    /// The domain of each CPU, by the engine's number. Flushes for a CPU without a domain, or in
    /// domain 0, reach every CPU.
    pub of_cpus: &'static [TlbiDomain],
    /// Time to issue and complete an operation in one domain.
    pub broadcast_ns: u64,
    /// Additional time for each further domain.
    pub operation_ns: u64,
    /// Time that a CPU takes to refill its TLB after its tag was dropped.
    pub refill_ns: u64,
}

impl DomainMap {
    /// The costs of reaching these CPUs by their domains; `None` if one has no domain, or if they
    /// are in more than [`DOMAINS_MAX`].
    #[must_use]
    pub fn costs<B: CpuBits>(&self, cpus: &CpuSet<B>) -> Option<DomainCosts> {
        let further = self.of(cpus)?.count().checked_sub(1)? as u64;
        Some(DomainCosts {
            broadcast_ns: self.broadcast_ns + self.operation_ns * further,
            refill_ns: self.refill_ns * cpus.len() as u64,
        })
    }

    /// The domains of these CPUs, each once; `None` as for [`costs`](Self::costs).
    pub fn of<B: CpuBits>(&self, cpus: &CpuSet<B>) -> Option<impl Iterator<Item = TlbiDomain>> {
        let mut found = [TlbiDomain(0); DOMAINS_MAX];
        let mut count = 0;
        for cpu in cpus.iter() {
            let domain = *self.of_cpus.get(cpu.index()).filter(|domain| domain.0 != 0)?;
            if !found[..count].contains(&domain) {
                *found.get_mut(count)? = domain;
                count += 1;
            }
        }
        Some(found.into_iter().take(count))
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "makes processors, whose instructions are recorded")]
mod tests {
    use super::*;
    use crate::aarch64::features::Features;
    use crate::aarch64::features::tests::V8_0;
    use crate::aarch64::instruction::{Step, steps_of};
    use crate::aarch64::operation::{Domain, Operation};
    use crate::aarch64::{Aarch64, Kpti};
    use shootdown::{Broadcaster as _, CpuId, Reach, Refused, Tag};
    use std::vec::Vec;

    const fn map(of_cpus: &'static [TlbiDomain]) -> DomainMap {
        DomainMap { of_cpus, broadcast_ns: 100, operation_ns: 10, refill_ns: 1000 }
    }

    const MAP: DomainMap = map(&[
        TlbiDomain(1),
        TlbiDomain(1),
        TlbiDomain(2),
        TlbiDomain(3),
        TlbiDomain(4),
        TlbiDomain(5),
        TlbiDomain(0),
    ]);

    fn cpus(members: &[u32]) -> CpuSet<[u64; 1]> {
        let mut cpus = CpuSet::new();
        for &cpu in members {
            cpus.insert(CpuId(cpu));
        }
        cpus
    }

    fn numbers(members: &[u32]) -> Option<Vec<u16>> {
        Some(MAP.of(&cpus(members))?.map(|domain| domain.0).collect())
    }

    #[test]
    fn each_domain_is_named_once() {
        assert_eq!(numbers(&[0, 1]), Some([1].to_vec()));
        assert_eq!(numbers(&[1, 2, 3]), Some([1, 2, 3].to_vec()));
        let costs = DomainCosts { broadcast_ns: 120, refill_ns: 4000 };
        assert_eq!(MAP.costs(&cpus(&[0, 1, 2, 3])), Some(costs));
    }

    #[test]
    fn every_cpu_is_reached_beyond_the_map() {
        assert_eq!(numbers(&[0, 2, 3, 4]).map(|it| it.len()), Some(DOMAINS_MAX));
        assert_eq!(numbers(&[0, 2, 3, 4, 5]), None, "too many domains");
        assert_eq!(numbers(&[0, 6]), None, "domain 0 is every CPU");
        assert_eq!(numbers(&[0, 7]), None, "a CPU that the map does not have");
        assert_eq!(MAP.costs(&cpus(&[])), None);
    }

    #[test]
    fn flush_names_domains_of_its_cpus() {
        let features = Features { domain_bits: 3, ..V8_0 };
        // SAFETY: instructions are only recorded.
        let processor = unsafe { Aarch64::new(features).with_domains(MAP) };
        assert_eq!(processor.capabilities().reach, Reach::Domains);
        let named = |tag, domain| {
            let operation = Operation::TagInDomain(Tag(tag), TlbiDomain(domain));
            Step::Tlbi(operation, Domain::InnerShareable)
        };
        let steps = steps_of(|| processor.broadcast_in_domains(&cpus(&[0, 1, 2]), Tag(7)));
        assert_eq!(steps, [named(7, 1), named(7, 2)]);
        assert_eq!(processor.broadcast_in_domains(&cpus(&[6]), Tag(7)), Err(Refused));
        // SAFETY: as above.
        let kpti = unsafe { Kpti::new(processor) };
        assert_eq!(kpti.capabilities().reach, Reach::Domains);
        let steps = steps_of(|| kpti.broadcast_in_domains(&cpus(&[2]), Tag(7)));
        assert_eq!(steps, [named(14, 2), named(15, 2)]);
        let costs = DomainCosts { broadcast_ns: 130, refill_ns: 2000 };
        assert_eq!(kpti.costs_in_domains(&cpus(&[0, 2])), Some(costs), "four operations");
    }

    #[test]
    fn processor_without_domains_reaches_everyone() {
        // SAFETY: instructions are only recorded.
        let processor = unsafe { Aarch64::new(V8_0) };
        assert_eq!(processor.capabilities().reach, Reach::Everyone);
        assert_eq!(processor.costs_in_domains(&cpus(&[0])), None);
        assert_eq!(processor.broadcast_in_domains(&cpus(&[0]), Tag(1)), Err(Refused));
    }

    #[test]
    #[should_panic(expected = "has too many bits")]
    fn domain_without_room_is_refused() {
        // SAFETY: instructions are only recorded.
        _ = unsafe { Aarch64::new(Features { domain_bits: 2, ..V8_0 }).with_domains(MAP) };
    }
}
