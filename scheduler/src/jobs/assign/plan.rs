//! Plans the tasks of `earliest-finish` together: which agent gets which task, and in what order.
//!
//! A plan assigns only tasks that would begin within `schedule::AHEAD`. The other tasks stay
//! located and are planned again in the next pass, with the results of the crawls that have ended
//! by then. Because only tasks that begin soon are assigned, a wrong prediction leaves no long
//! queue at an agent, and the last sites of a batch go to the agents that finish the crawls
//! soonest. A plan that decides nothing is kept until a task, an agent or a crawl changes, or until
//! a slot is about to become free. The pure module `strategy::schedule` makes the plan.

mod carried_out;
mod decisions;
mod free_slots;
mod input;
mod kept_plan;
mod predicted_times;
mod windows;

pub(in crate::jobs) use kept_plan::Planner;
