// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// A task runs in parallel to the steps.
type task struct {
	done chan struct{}
	err  error // after done was closed
}

// begin starts a task. The demo command does not end before its tasks have ended.
func (d *demo) begin(do func() error) *task {
	t := &task{done: make(chan struct{})}
	d.tasks = append(d.tasks, t)
	go func() {
		defer close(t.done)
		t.err = do()
	}()
	return t
}

// wait returns the error of the task when it has ended.
func (t *task) wait() error {
	<-t.done
	return t.err
}

// failed returns the error of the task if it has ended with one.
func (t *task) failed() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}
