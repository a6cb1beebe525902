// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// task is work that runs in parallel with the steps.
type task struct {
	done chan struct{}
	err  error // may be read after done has been closed
}

// begin starts a task. The demo command does not exit until all of its tasks have finished.
func (d *demo) begin(do func() error) *task {
	t := &task{done: make(chan struct{})}
	d.tasks = append(d.tasks, t)
	go func() {
		defer close(t.done)
		t.err = do()
	}()
	return t
}

// wait waits until the task has finished and returns the task's error.
func (t *task) wait() error {
	<-t.done
	return t.err
}

// failed returns the task's error if the task has finished with an error.
func (t *task) failed() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}
