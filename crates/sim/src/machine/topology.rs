//! The arrangement of CPUs: threads of cores, in clusters that share a cache, in sockets.

use core::ops::Range;

use serde::Deserialize;

/// Arrangement of the CPUs. They are numbered socket by socket, cluster by cluster, core by core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Topology {
    /// Number of sockets, or nodes: each has its own memory, and an interconnect joins them.
    pub sockets: usize,
    /// Number of clusters per socket. The cores of a cluster share a cache.
    pub clusters_per_socket: usize,
    /// Number of cores per cluster.
    pub cores_per_cluster: usize,
    /// Number of hardware threads per core.
    pub threads_per_core: usize,
    /// Number of CPUs in use: the first of those that the sockets have.
    cpus: usize,
    /// The sockets that are near each other.
    pub links: Links,
}

/// The pairs of sockets that have a link. Other pairs are [far](Distance::Far) from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Links {
    /// All pairs.
    #[default]
    All,
    /// Neighbours in a ring.
    Ring,
    /// All pairs in the same group of four.
    GroupsOfFour,
}

/// Distance from one CPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub enum Distance {
    /// The CPU itself, or another thread of its core.
    Core,
    /// Another core of the same cluster.
    Cluster,
    /// Another cluster of the same socket.
    Socket,
    /// Another socket.
    System,
    /// A socket without a link to this one.
    Far,
}

impl Topology {
    /// Creates a topology in which all CPUs of `sockets` sockets are in use.
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
        let links = Links::All;
        Self { sockets, clusters_per_socket, cores_per_cluster, threads_per_core, cpus, links }
    }

    /// Returns the same topology with other links between sockets.
    pub const fn with_links(self, links: Links) -> Self {
        Self { links, ..self }
    }

    /// Number of CPUs.
    #[must_use]
    pub const fn cpu_count(&self) -> usize {
        self.cpus
    }

    /// The socket that contains a CPU.
    #[must_use]
    pub const fn socket_of(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_socket()
    }

    pub(super) fn resized(self, cpus: usize) -> Self {
        let sockets = self.sockets.max(cpus.div_ceil(self.cpus_per_socket()));
        Self { sockets, cpus, ..self }
    }

    /// The distance between two CPUs.
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        [Distance::Core, Distance::Cluster, Distance::Socket]
            .into_iter()
            .find(|&within| self.within(a, within).contains(&b))
            .unwrap_or_else(|| self.between_sockets(self.socket_of(a), self.socket_of(b)))
    }

    /// The distance between two different sockets.
    pub const fn between_sockets(&self, a: usize, b: usize) -> Distance {
        let is_linked = match self.links {
            Links::All => true,
            Links::Ring => matches!(a.abs_diff(b), 1) || a.abs_diff(b) + 1 == self.sockets,
            Links::GroupsOfFour => a / 4 == b / 4,
        };
        if is_linked { Distance::System } else { Distance::Far }
    }

    /// The CPUs at a distance of at most `distance` from `cpu`; all CPUs for other sockets.
    #[must_use]
    pub fn within(&self, cpu: usize, distance: Distance) -> Range<usize> {
        let size = match distance {
            Distance::Core => self.threads_per_core,
            Distance::Cluster => self.cpus_per_cluster(),
            Distance::Socket => self.cpus_per_socket(),
            Distance::System | Distance::Far => return 0..self.cpus,
        };
        let first = cpu / size * size;
        first..(first + size).min(self.cpus)
    }

    /// The CPUs of a socket.
    pub(crate) fn cpus_of_socket(&self, socket: usize) -> Range<usize> {
        let first = socket * self.cpus_per_socket();
        first.min(self.cpus)..(first + self.cpus_per_socket()).min(self.cpus)
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
    fn distance_grows_from_core_to_socket() {
        let topology = Topology::new(2, 2, 3, 2);
        assert_eq!(topology.cpu_count(), 24);
        assert_eq!(topology.distance(0, 1), Distance::Core);
        assert_eq!(topology.distance(0, 2), Distance::Cluster);
        assert_eq!(topology.distance(5, 6), Distance::Socket);
        assert_eq!(topology.distance(11, 12), Distance::System);
    }

    #[test]
    fn sockets_without_link_are_far() {
        let ring = Topology::new(4, 1, 2, 1).with_links(Links::Ring);
        let distances = [0, 1, 2, 3].map(|socket| ring.distance(1, 2 * socket));
        let [core, near, far] = [Distance::Cluster, Distance::System, Distance::Far];
        assert_eq!(distances, [core, near, far, near]);
        let groups = Topology::new(8, 1, 1, 1).with_links(Links::GroupsOfFour);
        assert_eq!(groups.distance(3, 0), Distance::System);
        assert_eq!(groups.distance(3, 4), Distance::Far);
    }

    #[test]
    fn resizing_adds_or_removes_sockets() {
        let two = Topology::new(1, 1, 4, 1).resized(2);
        assert_eq!((two.cpu_count(), two.sockets), (2, 1));
        let many = Topology::new(1, 1, 4, 1).resized(9);
        assert_eq!((many.cpu_count(), many.sockets), (9, 3));
        assert_eq!(many.within(8, Distance::Socket), 8..9);
    }
}
