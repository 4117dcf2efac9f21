//! Shares a bounded number of slots out among tenants or routes, so that none takes them all: neither one whose calls hang nor
//! one with a backlog.
//!
//! It decides on numbers alone, and must not know what the slots are for.

use std::collections::HashMap;

use ibid_core::scope::Tenant;

/// Slots, the free ones and those that are held, by the name of the holder.
///
/// Rule: a holder gets another slot only while it holds fewer than are free. So one holder gets half of the slots, and some
/// are left for the next while two, three or more take all that they may. A holder that has none gets the last free slot. The
/// tempting alternative, at most half for each, lets two tenants whose providers hang take everything.
#[derive(Clone, Debug)]
pub(crate) struct SlotShares {
    free: usize,
    held: HashMap<String, usize>,
    /// A holder that gets all slots.
    sole: Option<String>,
}

impl SlotShares {
    /// Makes this many free slots.
    pub(crate) fn new(slots: usize) -> SlotShares {
        SlotShares { free: slots, held: HashMap::new(), sole: None }
    }

    /// Makes this many free slots for tenants. The only tenant of a deployment without tenants gets all of them: there is no
    /// other to leave some to.
    pub(crate) fn of_tenants(slots: usize) -> SlotShares {
        SlotShares { sole: Some(Tenant::only().as_str().to_owned()), ..SlotShares::new(slots) }
    }

    /// Returns the number of free slots.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Returns how many more slots this holder may get now.
    pub(crate) fn room(&self, holder: &str) -> usize {
        if self.sole.as_deref() == Some(holder) {
            return self.free;
        }
        // It may get its n-th more slot while `slots + n - 1 < free - (n - 1)`.
        let slots = self.held.get(holder).copied().unwrap_or_default();
        self.free.saturating_sub(slots).div_ceil(2)
    }

    /// Gives this holder a slot if it may have one.
    pub(crate) fn admit(&mut self, holder: &str) -> bool {
        let may = self.room(holder) > 0;
        if may {
            self.hold(holder);
        }
        may
    }

    /// Counts a slot that this holder has already.
    pub(crate) fn hold(&mut self, holder: &str) {
        self.free = self.free.saturating_sub(1);
        match self.held.get_mut(holder) {
            Some(slots) => *slots += 1,
            None => drop(self.held.insert(holder.to_owned(), 1)),
        }
    }

    /// Takes back a slot that this holder has.
    pub(crate) fn release(&mut self, holder: &str) {
        self.free += 1;
        if let Some(slots) = self.held.get_mut(holder) {
            *slots -= 1;
            if *slots == 0 {
                self.held.remove(holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many slots each holder gets if each takes all that it may, one after the other.
    fn greedy<const N: usize>(mut shares: SlotShares, holders: [&str; N]) -> [usize; N] {
        holders.map(|holder| {
            let room = shares.room(holder);
            let admitted = std::iter::from_fn(|| shares.admit(holder).then_some(())).count();
            assert_eq!(room, admitted, "room is what is admitted: {holder}");
            admitted
        })
    }

    #[test]
    fn a_holder_gets_at_most_half_of_the_slots() {
        assert_eq!(greedy(SlotShares::new(16), ["a"]), [8]);
        assert_eq!(greedy(SlotShares::new(3), ["a"]), [2]);
        assert_eq!(greedy(SlotShares::new(1), ["a"]), [1], "half of one slot is that slot");
    }

    #[test]
    fn holders_that_take_all_they_may_leave_slots_to_the_next() {
        assert_eq!(greedy(SlotShares::new(16), ["a", "b", "c", "d", "e", "f"]), [8, 4, 2, 1, 1, 0]);
    }

    #[test]
    fn a_freed_slot_goes_to_a_holder_that_has_none() {
        let mut shares = SlotShares::new(16);
        for _ in 0..8 {
            shares.hold("a");
            shares.hold("b");
        }
        assert!(!shares.admit("c"), "no slot is free");
        shares.release("b");
        assert_eq!(shares.free(), 1);
        assert!(!shares.admit("a") && !shares.admit("b"));
        assert!(shares.admit("c"));
    }

    #[test]
    fn the_only_tenant_gets_all_slots() {
        let only = Tenant::only();
        assert_eq!(greedy(SlotShares::of_tenants(16), [only.as_str()]), [16]);
        assert_eq!(greedy(SlotShares::of_tenants(16), ["a"]), [8]);
    }
}
