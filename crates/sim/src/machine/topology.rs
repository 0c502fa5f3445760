//! Where CPUs are: threads of cores, in clusters that share a cache, in sockets.

use core::ops::Range;

/// How CPUs are arranged. They are numbered socket by socket, cluster by cluster, core by core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets, or nodes: memory and interconnect apart.
    pub sockets: usize,
    /// Clusters of cores with a cache of their own, per socket.
    pub clusters_per_socket: usize,
    /// Cores per cluster.
    pub cores_per_cluster: usize,
    /// Hardware threads per core.
    pub threads_per_core: usize,
    /// How many of these CPUs there are: the first of them.
    cpus: usize,
}

/// How far a CPU is from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// A thread of the same core, or the CPU itself.
    Core,
    /// The same cluster.
    Cluster,
    /// The same socket.
    Socket,
    /// Another socket.
    System,
}

impl Topology {
    /// All the CPUs of so many sockets.
    #[must_use]
    pub const fn new(
        sockets: usize,
        clusters_per_socket: usize,
        cores_per_cluster: usize,
        threads_per_core: usize,
    ) -> Self {
        let cpus = sockets
            .saturating_mul(clusters_per_socket)
            .saturating_mul(cores_per_cluster)
            .saturating_mul(threads_per_core);
        Self { sockets, clusters_per_socket, cores_per_cluster, threads_per_core, cpus }
    }

    /// How many CPUs there are.
    #[must_use]
    pub const fn cpu_count(&self) -> usize {
        self.cpus
    }

    /// How many sockets there are.
    #[must_use]
    pub const fn socket_count(&self) -> usize {
        self.sockets
    }

    /// The socket that a CPU is in.
    #[must_use]
    pub const fn socket_of(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_socket()
    }

    pub(super) fn resized(self, cpus: usize) -> Self {
        let sockets = self.sockets.max(cpus.div_ceil(self.cpus_per_socket()));
        Self { sockets, cpus, ..self }
    }

    /// How far apart two CPUs are.
    #[must_use]
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        [Distance::Core, Distance::Cluster, Distance::Socket]
            .into_iter()
            .find(|&within| self.within(a, within).contains(&b))
            .unwrap_or(Distance::System)
    }

    /// The CPUs that are at most so far from `cpu`.
    #[must_use]
    pub fn within(&self, cpu: usize, distance: Distance) -> Range<usize> {
        let size = match distance {
            Distance::Core => self.threads_per_core,
            Distance::Cluster => self.cpus_per_cluster(),
            Distance::Socket => self.cpus_per_socket(),
            Distance::System => return 0..self.cpus,
        };
        let first = cpu / size * size;
        first..(first + size).min(self.cpus)
    }

    const fn cpus_per_cluster(&self) -> usize {
        self.cores_per_cluster * self.threads_per_core
    }

    const fn cpus_per_socket(&self) -> usize {
        self.clusters_per_socket * self.cpus_per_cluster()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_by_core_then_cluster_then_socket() {
        let topology = Topology::new(2, 2, 3, 2);
        assert_eq!(topology.cpu_count(), 24);
        assert_eq!(topology.distance(0, 1), Distance::Core);
        assert_eq!(topology.distance(0, 2), Distance::Cluster);
        assert_eq!(topology.distance(5, 6), Distance::Socket);
        assert_eq!(topology.distance(11, 12), Distance::System);
    }

    #[test]
    fn more_cpus_are_more_sockets_and_fewer_are_the_first() {
        let two = Topology::new(1, 1, 4, 1).resized(2);
        assert_eq!((two.cpu_count(), two.sockets), (2, 1));
        let many = Topology::new(1, 1, 4, 1).resized(9);
        assert_eq!((many.cpu_count(), many.sockets), (9, 3));
        assert_eq!(many.within(8, Distance::Socket), 8..9);
    }
}
