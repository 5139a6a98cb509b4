//! Seeds of random draws. Equal inputs give equal seeds, so that a choice can be repeated exactly.

use crate::model::TaskId;

/// Maps neighbouring numbers to unrelated seeds, by one step and the finaliser of splitmix64
/// (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub const fn spread(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The seed of the random choice of an agent for a task. The seed depends only on the task and on
/// the number of the task's earlier choices, so a choice can be repeated exactly. The seeds of tasks
/// with consecutive identifiers are unrelated.
pub const fn of_choice(task: TaskId, choices: i64) -> u64 {
    spread(task.get().cast_unsigned() ^ choices.cast_unsigned().rotate_left(48))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_generator() {
        // The first outputs of splitmix64 with the seed 0.
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let drawn = [0, step, step.wrapping_mul(2)].map(spread);
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }
}
