use super::*;

#[test]
fn stock_has_each_asid_once() {
    let stock = Stock::new();
    assert_eq!([stock.pop(0), stock.pop(2)], [None, None]);
    stock.fill(Block { epoch: 2, word: 1, asids: 1 << 63 | 0b101 });
    assert_eq!(stock.pop(2), Some(64));
    assert_eq!([stock.pop(4), stock.pop(2), stock.pop(2)], [None, Some(66), Some(127)]);
    stock.put_back(66);
    assert_eq!([stock.pop(2), stock.pop(2)], [Some(66), None]);
    let last = Block { epoch: (1 << 40) - 2, word: 1023, asids: 1 << 62 };
    stock.fill(last);
    assert_eq!([stock.pop(2), stock.pop(last.epoch)], [None, Some(65_534)]);
}

#[test]
fn recycled_asid_is_kept_in_its_epoch() {
    let stock = Stock::new();
    stock.fill(Block { epoch: 4, word: 1, asids: 0b110 });
    // Of an earlier epoch, and of another word.
    stock.recycle(2, 64);
    stock.recycle(4, 63);
    assert_eq!([2, 4, 4, 4].map(|epoch| stock.pop(epoch)), [None, Some(65), Some(66), None]);
    // The stock is empty, so it can go to another word, in the same epoch only.
    stock.recycle(4, 130);
    stock.recycle(4, 66);
    stock.recycle(6, 131);
    assert_eq!([4, 4, 6].map(|epoch| stock.pop(epoch)), [Some(130), None, None]);
    stock.recycle(4, 130);
    stock.fill(Block { epoch: 6, word: 2, asids: 0 });
    assert_eq!(stock.pop(6), None);
}

#[test]
fn recycled_asid_needs_discard_once() {
    let stock = Stock::new();
    stock.fill(Block { epoch: (1 << 40) - 2, word: 1023, asids: 0b11 << 62 });
    let pop = || stock.pop((1 << 40) - 2);
    let last = 1023 * 64 + 63;
    assert_eq!((pop(), stock.needs_discard(last - 1)), (Some(last - 1), false));
    stock.recycle((1 << 40) - 2, last - 1);
    for _ in 0..2 {
        assert_eq!((pop(), stock.needs_discard(last)), (Some(last - 1), false));
        assert_eq!([(); 2].map(|()| stock.needs_discard(last - 1)), [true, false]);
        // Also if no space has got it.
        stock.put_back(last - 1);
    }
    assert_eq!([pop(), pop(), pop()], [Some(last - 1), Some(last), None]);
    assert_eq!([last - 1, last].map(|asid| stock.needs_discard(asid)), [false, true]);
    assert!(!Stock::new().needs_discard(0));
}
