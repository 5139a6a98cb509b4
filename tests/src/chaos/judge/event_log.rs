//! The events of a run, grouped by task and by agent.

use std::collections::BTreeMap;

use super::history::{Event, History};

/// Events grouped by task and by agent, in the order of their numbers.
pub(super) struct EventLog<'a> {
    pub(super) tasks: BTreeMap<i64, Vec<&'a Event>>,
    pub(super) agents: BTreeMap<i64, Vec<&'a Event>>,
}

impl<'a> EventLog<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let (mut tasks, mut agents) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for event in &history.events {
            if let Some(task) = event.task {
                tasks.entry(task).or_default().push(event);
            }
            if let Some(agent) = event.agent.filter(|_| event.noun != "task") {
                agents.entry(agent).or_default().push(event);
            }
        }
        tasks.values_mut().chain(agents.values_mut()).for_each(|events| events.sort_by_key(|event| event.id));
        Self { tasks, agents }
    }
}
