//! Pages whose table and pool have gone while they were looked at: alone in this process, because what it
//! holds is measured, and because any other pool would let go of them.

use isolane_memory::{PAGE_SIZE, Page, PageTable, Pool};

const PAGES: usize = (64 << 20) / PAGE_SIZE;

/// What the process holds in memory now, in pages.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse().unwrap()
}

fn full_table(pool: &mut Pool) -> PageTable {
    let table = PageTable::new(PAGES).unwrap();
    (0..PAGES).for_each(|index| table.put(index, Page::zeroed(), pool));
    table
}

#[test]
fn the_last_who_looks_lets_go_of_what_table_and_pool_left_behind() {
    for _ in 0..2 {
        let mut pool = Pool::new(1);
        let table = full_table(&mut pool);
        let reader = table.look(7, &mut pool).unwrap();
        drop(table);
        drop(pool);
        let held = resident();
        assert_eq!(reader.bytes(), &[0; PAGE_SIZE]);
        drop(reader);
        assert!(held - resident() > PAGES / 2, "{held} pages were held, and {} still are", resident());
    }
}
