-- R42: the trace contexts of a job's first triggers, a line for each; null where none has one. It is the
-- last column of both: rows move between them as they are.
alter table quell.job add column traces text;
alter table quell.ended add column traces text;
