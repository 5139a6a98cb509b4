//! Gives the reason why an agent was elected, as text for the operator.

use crate::model::AgentId;

use super::nominees::{Nominee, Nominees};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectedLandmark {
    pub agent: AgentId,
    /// The reason for the choice, as text for the operator.
    pub reason: String,
}

impl Nominees<'_> {
    pub(super) fn elected(&self, place: usize, chosen: &[usize]) -> ElectedLandmark {
        ElectedLandmark { agent: self.agent(place), reason: self.reason(place, chosen) }
    }

    fn reason(&self, elected: usize, chosen: &[usize]) -> String {
        let nearest_is = |row: &Vec<f64>| {
            chosen.iter().copied().min_by(|&a, &b| row[a].total_cmp(&row[b])).is_some_and(|nearest| nearest == elected)
        };
        let around = (0..self.distance.len()).filter(|i| !chosen.contains(i) && nearest_is(&self.distance[*i])).count();
        let central = match around {
            0 => "no other agent is nearer to it than to another landmark".to_owned(),
            1 => "central to 1 agent beside it".to_owned(),
            more => format!("central to {more} agents around it"),
        };
        match self.distinction(elected) {
            Some(distinction) => format!("{central}; {distinction}"),
            None => central,
        }
    }

    fn distinction(&self, elected: usize) -> Option<String> {
        let it = self.nominees[elected];
        let alone = |same: &dyn Fn(&Nominee) -> bool| self.nominees.iter().filter(|other| same(other)).count() == 1;
        if it.city.is_empty() || it.carrier.is_empty() || self.nominees.len() == 1 {
            return None;
        }
        if alone(&|other| other.carrier == it.carrier && other.city == it.city) {
            return Some(format!("the only one on {} in {}", it.carrier, it.city));
        }
        Some(format!("on {} in {}", it.carrier, it.city))
    }
}
