// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	defaultGrace = 10 * time.Second
	readyPoll    = 50 * time.Millisecond
)

// ErrForced means that a process did not end by itself within its grace and was killed.
var ErrForced = errors.New("did not end in time and was killed")

// Command describes a program to run as a Process.
type Command struct {
	// Name is for messages; the default is the last element of Path.
	Name string
	// Path is the binary; Args come after it.
	Path string
	Args []string
	// Env is the whole environment; nil inherits ours.
	Env []string
	// WorkDir is the working folder; the default is ours.
	WorkDir string
	// LogFile receives standard output and error, appended; it is made readable for its owner only. Required.
	LogFile string
	// PIDFile, if set, is written at the start and removed by Stop; see StopDetached. Its name ends in ".pid", and a file
	// beside it that ends in ".born" distinguishes the process from a later one of the same pid.
	PIDFile string
	// Detached lets the process outlive us. Otherwise the kernel (on Linux) kills it when we end, also if we are killed.
	Detached bool
	// Grace is how long Stop waits between asking and killing; the default is 10 s.
	Grace time.Duration
	// Restart, if set, is asked with the end of the log when the program ended by itself with an exit code other than 0,
	// and reports whether to start it again, as a kubelet starts a container again. It is not for a Command with a
	// PIDFile.
	Restart func(log string) bool
}

// A Process is a running program, in a process group of its own so that Ctrl-C does not reach it. All methods may be
// called concurrently.
type Process struct {
	command Command
	mu      sync.Mutex // guards cmd and ending
	cmd     *exec.Cmd
	ending  bool // it was told to end
	// exited is closed when the process was waited for; exit may be read after that.
	exited chan struct{}
	exit   error
}

// Start runs the command. It does not wait until the program is ready; see WaitReady. The caller must Stop or Kill it,
// unless it is detached.
func (c Command) Start() (*Process, error) {
	if c.Name == "" {
		c.Name = filepath.Base(c.Path)
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	p := &Process{command: c, exited: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	if c.PIDFile == "" {
		return p, nil
	}
	if err := writeRecord(c.PIDFile, p.PID()); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", c.Name, err), p.Kill())
	}
	return p, nil
}

func (c Command) prepare(log *os.File) *exec.Cmd {
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env, cmd.Dir = c.Env, c.WorkDir
	cmd.Stdout, cmd.Stderr = log, log
	if c.Detached {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // else the end of our terminal would hang it up
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		dieWithParent(cmd.SysProcAttr)
	}
	return cmd
}

// run owns the process from fork to wait. It keeps its thread for all that time, because the kernel sends the
// parent-death signal when the thread that forked ends, not the program.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd, err := p.begin()
	started <- err
	if err != nil {
		return
	}
	for cmd != nil {
		p.exit = cmd.Wait()
		cmd = p.again()
	}
	close(p.exited)
}

// begin starts the program.
func (p *Process) begin() (*exec.Cmd, error) {
	log, err := openLog(p.command.LogFile)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	cmd := p.command.prepare(log)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.cmd = cmd
	return cmd, nil
}

// again starts the program once more if its Command says so, and returns nil otherwise.
func (p *Process) again() *exec.Cmd {
	var exit *exec.ExitError
	if p.command.Restart == nil || !errors.As(p.exit, &exit) || !exit.Exited() || !p.command.Restart(lastLines(p.command.LogFile, 1)) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending {
		return nil
	}
	cmd, err := p.begin()
	if err != nil {
		p.exit = errors.Join(p.exit, err)
		return nil
	}
	return cmd
}

func (p *Process) process() *os.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process
}

func openLog(path string) (*os.File, error) {
	if path == "" {
		return nil, errors.New("no log file is set")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// PID returns the process id. After the process has ended another process may have it.
func (p *Process) PID() int { return p.process().Pid }

// LogFile returns the path of the log.
func (p *Process) LogFile() string { return p.command.LogFile }

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns how the process ended: nil while it runs and after exit code 0, else an *exec.ExitError.
func (p *Process) Err() error {
	select {
	case <-p.exited:
		return p.exit
	default:
		return nil
	}
}

// WaitReady calls check every 50 ms until it returns nil. When the process or ctx ends first, it returns an error
// with the last error of check and the last lines of the log.
func (p *Process) WaitReady(ctx context.Context, check func(context.Context) error) error {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return p.notReady("ended before it was ready", p.exit)
		case <-ctx.Done():
			return p.notReady("is not ready", errors.Join(context.Cause(ctx), err))
		case <-ticker.C:
		}
	}
}

func (p *Process) notReady(what string, cause error) error {
	if cause == nil {
		cause = errors.New("exit status 0")
	}
	return fmt.Errorf("start %s: it %s: %w; the end of %s:\n%s",
		p.command.Name, what, cause, p.command.LogFile, lastLines(p.command.LogFile, 15))
}

// Stop asks the process to end, kills it after the grace of its Command or at the end of ctx, and returns when it is
// gone: nil, or an error that wraps ErrForced. Stopping an ended process does nothing.
func (p *Process) Stop(ctx context.Context) error {
	defer p.forget()
	p.end()
	if !p.send(syscall.SIGTERM) {
		return nil
	}
	p.send(syscall.SIGCONT) // a paused process could not answer
	grace := time.NewTimer(p.command.Grace)
	defer grace.Stop()
	select {
	case <-p.exited:
		return nil
	case <-grace.C:
	case <-ctx.Done():
	}
	return errors.Join(fmt.Errorf("stop %s: %w", p.command.Name, ErrForced), p.Kill())
}

// Kill ends the process at once, as a crash would, and returns when it is gone.
func (p *Process) Kill() error {
	defer p.forget()
	p.end()
	p.send(syscall.SIGKILL)
	<-p.exited
	return nil
}

// Pause freezes the process as if it hung: its connections stay open and it does not respond.
func (p *Process) Pause() error { return p.must(syscall.SIGSTOP) }

// Resume ends a Pause.
func (p *Process) Resume() error { return p.must(syscall.SIGCONT) }

// Signal sends any signal. It returns os.ErrProcessDone if the process has ended.
func (p *Process) Signal(sig os.Signal) error { return p.must(sig) }

func (p *Process) must(sig os.Signal) error {
	if err := p.process().Signal(sig); err != nil {
		return fmt.Errorf("send %v to %s: %w", sig, p.command.Name, err)
	}
	return nil
}

// end makes the next end of the program the last.
func (p *Process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
}

// send reports whether there was still a process to send to.
func (p *Process) send(sig os.Signal) bool { return p.process().Signal(sig) == nil }

// forget removes the pid file once the process is gone.
func (p *Process) forget() {
	select {
	case <-p.exited:
		if p.command.PIDFile != "" {
			_ = removeRecord(p.command.PIDFile) // a stale file does no harm: it is verified before use
		}
	default:
	}
}

// lastLines returns the end of a log, or why it cannot be read.
func lastLines(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const limit = 8 << 10
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	buf := make([]byte, min(info.Size(), limit))
	read, err := f.ReadAt(buf, info.Size()-int64(len(buf)))
	if read == 0 && err != nil {
		return "(empty)"
	}
	lines := strings.Split(strings.TrimRight(string(buf[:read]), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
