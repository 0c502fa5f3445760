//! The end of a space.

use crate::coherence::Coherence;
use crate::format::Format;
use crate::platform::{Platform, Work};
use crate::space::AddressSpace;
use crate::table::PageTables;

impl<P: Platform, C: Coherence, F: Format> AddressSpace<P, C, F> {
    /// Takes the space down: no CPU has it loaded afterwards, and its pages and tables are free.
    ///
    /// Nobody may be using the space any more, nor be about to: no thread of it is left but the
    /// caller's, which runs in the kernel, and no other call is on its way. Calls that come later
    /// find a space without room for anything.
    ///
    /// There is one [`retire`](Coherence::retire), and no flush. It comes before anything else, so
    /// that what follows is bookkeeping: entries are not cleared, nor pages gathered.
    pub fn exit(&self) {
        let platform = &self.vm.platform;
        platform.work(Work::Areas, 1);
        let Some(mut areas) = self.areas.write().close() else { return };
        self.vm.coherence.retire(self.coherent());
        for area in areas.iter() {
            let mut page_count = 0;
            for (_, _, entry) in self.tables.entries(platform, area.range.clone()) {
                if let Some(leaf) = F::as_leaf(entry) {
                    self.vm.release(leaf.frame);
                    page_count += 1;
                }
            }
            if page_count != 0 {
                platform.work(Work::UnmapPage, page_count);
            }
        }
        let ranges = areas.with_tables(PageTables::<F>::last_table_bytes());
        self.tables.unhook(platform, &ranges, &(0..u64::MAX), |table, _| {
            platform.free_table(table);
        });
        self.tables.free_root(platform);
    }
}
