//! The best choice for each group that all together fit: the knapsack problem, solved exactly.

/// What a group may become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// What it takes.
    pub(super) size: usize,
    /// What it loses.
    pub(super) loss: f64,
}

/// Which item of each group loses least in all, none with less than its group's first one, if they are to take at most
/// `room` more than all first ones. Items are in ascending order of their sizes. Of equal losses it is the smaller items.
pub(super) fn choose<const ITEMS: usize>(groups: &[[Item; ITEMS]], room: usize) -> Vec<usize> {
    let more = |items: &[Item; ITEMS], item: usize| items[item].size - items[0].size;
    let most: usize = groups.iter().map(|items| more(items, ITEMS - 1)).sum();
    let room = room.min(most);
    // The least loss of the groups so far in each room, and which item of each group is in it.
    let mut least = vec![0.0; room + 1];
    let mut chosen: Vec<Vec<u8>> = Vec::with_capacity(groups.len());
    for items in groups {
        let best = (0..=room).map(|room| {
            let fitting = (0..ITEMS).filter(|&item| more(items, item) <= room);
            let losses = fitting.map(|item| (item as u8, least[room - more(items, item)] + items[item].loss));
            losses.reduce(|best, other| if other.1 < best.1 { other } else { best }).unwrap_or_default()
        });
        let (items, losses): (Vec<u8>, Vec<f64>) = best.unzip();
        chosen.push(items);
        least = losses;
    }
    let mut rest = room;
    let mut items: Vec<usize> = groups
        .iter()
        .zip(&chosen)
        .rev()
        .map(|(items, chosen)| {
            let item = usize::from(chosen[rest]);
            rest -= more(items, item);
            item
        })
        .collect();
    items.reverse();
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By trying all.
    fn least(groups: &[[Item; 3]], room: usize) -> f64 {
        let Some((items, rest)) = groups.split_first() else { return 0.0 };
        let fitting = items.iter().filter(|item| item.size - items[0].size <= room);
        let losses = fitting.map(|item| item.loss + least(rest, room - (item.size - items[0].size)));
        losses.fold(f64::MAX, f64::min)
    }

    #[test]
    fn no_other_choice_that_fits_loses_less() {
        let item = |size, loss| Item { size, loss };
        let groups: Vec<[Item; 3]> = (0..6)
            .map(|group| {
                let (size, loss) = (3 + group * 7 % 5, f64::from(u32::try_from(group * 11 % 7 + 1).unwrap()));
                [item(size, loss), item(size + 2 + group % 3, loss / 4.0), item(size + 9, loss / 15.0)]
            })
            .collect();
        for room in 0..80 {
            let items = choose(&groups, room);
            let chosen = || groups.iter().zip(&items).map(|(items, &item)| (items[0], items[item]));
            assert!(chosen().map(|(first, item)| item.size - first.size).sum::<usize>() <= room);
            let loss: f64 = chosen().map(|(_, item)| item.loss).sum();
            assert!((loss - least(&groups, room)).abs() < 1e-9, "{room}: {items:?}");
        }
        assert_eq!(choose(&groups, 0), [0; 6]);
        assert_eq!(choose(&groups, usize::MAX), [2; 6]);
    }

    #[test]
    fn what_gains_nothing_stays_small() {
        let items = [1, 2, 3].map(|size| Item { size, loss: 0.0 });
        assert_eq!(choose(&[items; 2], 9), [0, 0]);
        assert_eq!(choose::<3>(&[], 9), [0; 0]);
    }
}
