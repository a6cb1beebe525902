// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instructions carries out the instructions of a host: files, one-time and periodic instructions and probes,
// with a journal for which no crash repeats a one-time instruction.
//
// The journal has a folder for each instruction. A supervisor, a process of its own for each, makes the file "begun"
// exclusively before the command starts, and "result.json" after it has ended. The agent only reads them. So the file
// system decides that a command begins once, and an agent that was killed at any point finds out what happened
// meanwhile.
package instructions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	fileStored     = "plan.json"  // the name is older than the kind Plan: agents of other versions read it
	fileCheckpoint = "checkpoint" // the latest of the hub; it outlives instructions
	folderJournal  = "journal"

	// fileRetry is the time between two attempts to write files.
	fileRetry = 30 * time.Second
	// lockPoll is the time between two looks at an instruction that another process supervises.
	lockPoll = 200 * time.Millisecond
	// maxStarts bounds the supervisors that are started for an instruction that does not begin.
	maxStarts = 20
)

// ErrCleaning says that a host takes no instructions because what it had before is being cleaned.
var ErrCleaning = errors.New("the host is being cleaned; try again when it is")

// Options of a Runner.
type Options struct {
	// State is the folder of instructions and journal. Only root may read it.
	State string
	// Root is put before the paths of files, empty on a real machine.
	Root string
	// Supervisor returns the command whose process calls Supervise with that folder.
	Supervisor func(entry string) *exec.Cmd
	// Changed is called after each change of Progress. It must not block.
	Changed func()
	Log     logr.Logger

	step  func(name string) // called between steps; tests end the process there
	retry time.Duration     // in place of fileRetry
}

// Runner carries out the instructions of a host.
type Runner struct {
	options Options
	journal journal
	wake    chan struct{} // has room for one: there are other instructions

	setting sync.Mutex // held while instructions are stored and taken: what is stored is carried out

	mu       sync.Mutex // guards what follows
	order    *order     // nil if there is none
	progress protocol.HostProgress
	reached  string            // checkpoint of the hub
	failing  map[string]bool   // probes that are not successful
	periodic map[string]string // why periodic instructions fail, by ID
}

// order holds instructions as they are stored, in a file that an agent of another version reads.
type order struct {
	// Version is the hub's for the instructions.
	Version string `json:"version"`
	// Taken reports whether the instructions were taken away: what is left to do is to clean.
	Taken bool `json:"taken,omitempty"`
	// Cleaned reports whether that is done, but for the journal and this itself.
	Cleaned bool `json:"cleaned,omitempty"`

	*protocol.HostInstructions `json:"plan"`
}

// next returns the one-time instructions that are to run.
func (o *order) next() []protocol.HostInstruction {
	if o.Taken {
		return o.Clean
	}
	return o.Instructions
}

// New makes a Runner that goes on with the instructions that the state folder has, if it has some.
func New(o Options) (*Runner, error) {
	if o.step == nil {
		o.step = func(string) {}
	}
	r := &Runner{options: o, journal: journal{filepath.Join(o.State, folderJournal)}, wake: make(chan struct{}, 1)}
	if err := makeFolder(r.journal.folder); err != nil {
		return nil, fmt.Errorf("instructions of the host: %w", err)
	}
	if err := r.readCheckpoint(); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(r.stored())
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	} else if err != nil {
		return nil, fmt.Errorf("instructions of the host: %w", err)
	}
	found := &order{}
	if err := json.Unmarshal(raw, found); err != nil || found.HostInstructions == nil {
		return nil, fmt.Errorf("instructions of the host: %s cannot be read: look at the machine, then remove the file", r.stored()) // the cause may quote it
	}
	r.take(found)
	return r, nil
}

func (r *Runner) stored() string { return filepath.Join(r.options.State, fileStored) }

// Set stores instructions permanently and carries them out in place of those before. An instruction that runs is not
// ended. Nil takes the instructions away: their Clean instructions run, their files are removed, and the journal is
// emptied. Instructions of another owner do the same and are not stored: Set returns ErrCleaning until the machine is
// clean. The checkpoint that came with them is stored before, empty for none.
func (r *Runner) Set(checkpoint, version string, instructions *protocol.HostInstructions) error {
	r.setting.Lock()
	defer r.setting.Unlock()
	before := r.current()
	if instructions != nil && before != nil && before.Taken {
		return ErrCleaning
	}
	if err := r.reach(checkpoint); err != nil {
		return err
	}
	next := &order{Version: version, HostInstructions: instructions}
	clean := before != nil && (instructions == nil || before.Owner != instructions.Owner)
	switch {
	case instructions == nil && (before == nil || before.Taken):
		return nil
	case clean:
		next = &order{Version: before.Version, HostInstructions: before.HostInstructions, Taken: true}
	case before != nil && before.Version == version:
		return nil
	}
	if err := r.store(next); err != nil {
		return err
	}
	r.take(next)
	r.stopStarts(next)
	if clean && instructions != nil {
		return ErrCleaning
	}
	return nil
}

// stopStarts ends instructions that start a service which the next ones stop.
func (r *Runner) stopStarts(o *order) {
	if o == nil || o.Taken {
		return
	}
	if err := r.journal.stopStarts(o.Instructions); err != nil {
		r.options.Log.Error(err, "an instruction that starts what is to be stopped goes on")
	}
}

func (r *Runner) store(o *order) error {
	raw, err := json.Marshal(o)
	if err == nil {
		err = WriteDurably(r.stored(), raw)
	}
	if err != nil {
		return fmt.Errorf("instructions of the host: %w", err)
	}
	r.options.step("instructions stored")
	return nil
}

func (r *Runner) take(o *order) {
	r.mu.Lock()
	r.order, r.failing, r.periodic, r.progress = o, map[string]bool{}, map[string]string{}, protocol.HostProgress{}
	if o != nil {
		r.progress = protocol.HostProgress{Version: o.Version, Owner: &o.Owner, Phase: protocol.HostApplying, Total: int32(len(o.Instructions))}
		for _, probe := range o.Probes {
			r.failing[probe.Name] = true
		}
	}
	if o != nil && o.Taken {
		r.failing, r.progress.Phase, r.progress.Total = nil, protocol.HostCleaning, int32(len(o.Clean))
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	r.changed()
}

// Progress returns how far the instructions are. It is empty without instructions.
func (r *Runner) Progress() protocol.HostProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.progress
	p.Checkpoint = r.reached
	for name := range r.failing {
		p.Failing = append(p.Failing, name)
	}
	slices.Sort(p.Failing)
	if p.Phase == protocol.HostApplied && len(r.periodic) > 0 {
		ids := make([]string, 0, len(r.periodic))
		for id := range r.periodic {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		p.Message = fmt.Sprintf("periodic instruction %s: %s", ids[0], r.periodic[ids[0]])
	}
	p.Bound()
	return p
}

func (r *Runner) changed() {
	if r.options.Changed != nil {
		r.options.Changed()
	}
}

// update changes the progress of instructions, unless there are others by now.
func (r *Runner) update(o *order, change func(*protocol.HostProgress)) {
	r.mu.Lock()
	current := r.order == o
	if current {
		change(&r.progress)
	}
	r.mu.Unlock()
	if current {
		r.changed()
	}
}

func (r *Runner) current() *order {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.order
}

// Run carries instructions out until ctx ends. An instruction that runs then goes on, and the next Runner finds its
// result.
func (r *Runner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		o := r.current()
		r.follow(ctx, o)
	}
}

// follow carries out instructions until there are others or ctx ends.
func (r *Runner) follow(ctx context.Context, o *order) {
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	r.stopStarts(o)
	for o != nil && r.journal.busy(o.next()) { // an instruction of before, which the agent that started it did not outlive
		if !r.await(ctx, o, lockPoll) {
			return
		}
	}
	if o != nil {
		if err := r.journal.prune(o.Instructions); err != nil {
			r.options.Log.Error(err, "the journal still has instructions that it could forget")
		}
	}
	carryOut := r.apply
	if o != nil && o.Taken {
		carryOut = r.clean
	}
	for o != nil && !carryOut(ctx, o) { // files could not be written or removed, or an instruction could not begin
		if !r.await(ctx, o, cmp.Or(r.options.retry, fileRetry)) {
			return
		}
	}
	if o != nil && r.Progress().Phase == protocol.HostApplied {
		r.keep(ctx, o, &running)
	}
	for r.current() == o && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.wake:
		}
	}
}

// await waits. It returns false if there are other instructions or ctx ends before.
func (r *Runner) await(ctx context.Context, o *order, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for r.current() == o {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return errors.Is(ctx.Err(), context.DeadlineExceeded)
		}
	}
	return false
}

// apply writes the files and runs the one-time instructions that have not run. It returns false if that should be tried
// again.
func (r *Runner) apply(ctx context.Context, o *order) bool {
	for _, file := range o.Files {
		if err := writeFile(r.options.Root, file); err != nil {
			r.fail(o, protocol.HostFailed, "", err.Error(), "")
			return false
		}
		r.options.step("file written")
	}
	r.update(o, func(p *protocol.HostProgress) { p.Phase, p.Message, p.Done = protocol.HostApplying, "", 0 })
	if r.all(ctx, o, o.Instructions) {
		r.update(o, func(p *protocol.HostProgress) { p.Phase = protocol.HostApplied })
		return true
	}
	return !r.waits()
}

// waits reports whether an instruction has failed before it began, as on a full disk. It may begin later.
func (r *Runner) waits() bool {
	p := r.Progress()
	if p.Phase != protocol.HostFailed || p.Instruction == "" {
		return false
	}
	state, _, _, err := r.journal.look(p.Instruction)
	return err == nil && state == unknown
}

// clean runs the Clean instructions, then forgets all instructions, with the journal. It returns false if that should
// be tried again.
func (r *Runner) clean(ctx context.Context, o *order) bool {
	r.update(o, func(p *protocol.HostProgress) { p.Phase, p.Message, p.Done = protocol.HostCleaning, "", 0 })
	if !o.Cleaned && !r.all(ctx, o, o.Clean) {
		return !r.waits()
	}
	for _, file := range o.Files {
		if err := writeFile(r.options.Root, protocol.HostFile{Path: file.Path, Absent: true}); err != nil {
			r.fail(o, protocol.HostFailed, "", err.Error(), "")
			return false
		}
	}
	r.options.step("files removed")
	if err := r.forget(*o); err != nil {
		r.fail(o, protocol.HostFailed, "", err.Error(), "")
		return false
	}
	r.take(nil)
	return true
}

// forget removes the journal, then the instructions, so that the same instructions can be carried out again. It stores
// first that it does so: without the journal an agent that is killed meanwhile would clean again.
func (r *Runner) forget(o order) error {
	o.Cleaned = true
	if err := r.store(&o); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.journal.folder), makeFolder(r.journal.folder)); err != nil {
		return err
	}
	r.options.step("journal removed")
	return errors.Join(os.Remove(r.stored()), syncFolder(r.options.State))
}
