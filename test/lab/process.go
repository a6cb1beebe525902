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

// ErrForced is returned when a process did not end within its grace period and was killed.
var ErrForced = errors.New("did not end in time and was killed")

// Command describes a program to run as a Process.
type Command struct {
	// Name is the name in messages. It defaults to the last element of Path.
	Name string
	// Path is the path of the binary. Args are its arguments.
	Path string
	Args []string
	// Env is the complete environment. If it is nil, the process inherits the environment of the caller.
	Env []string
	// WorkDir is the working directory. It defaults to the working directory of the caller.
	WorkDir string
	// LogFile is the file to which standard output and standard error are appended. Only the owner can read it. It is
	// required.
	LogFile string
	// PIDFile, if set, is written at the start and removed by Stop. See StopDetached. Its name must end in ".pid". A
	// second file, whose name ends in ".born" instead, distinguishes the process from a later process with the same
	// pid.
	PIDFile string
	// Detached makes the process continue when the caller ends. Otherwise, the kernel kills the process when the
	// caller ends or is killed (on Linux).
	Detached bool
	// Grace is how long Stop waits for the process to end before killing it. It defaults to 10 s.
	Grace time.Duration
	// Restart, if set, is called with the end of the log when the program has ended on its own with an exit code
	// other than 0. It reports whether to start the program again, in the same way as a kubelet restarts a container.
	// It must not be combined with PIDFile.
	Restart func(log string) bool
}

// Process is a running program. It has its own process group, so that Ctrl-C does not reach it. All methods may be
// called concurrently.
type Process struct {
	command Command
	mu      sync.Mutex // guards cmd and ending
	cmd     *exec.Cmd
	ending  bool // set when the program has been told to end
	// exited is closed when the process has been waited for. exit may be read after that.
	exited chan struct{}
	exit   error
}

// Start starts the command. It does not wait until the program is ready; see WaitReady. The caller must call Stop or
// Kill, unless the process is detached.
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
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // otherwise, closing the terminal would end it
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		dieWithParent(cmd.SysProcAttr)
	}
	return cmd
}

// run owns the process from fork to wait. It keeps its thread during this time, because the kernel sends the
// parent-death signal as soon as the thread that forked ends, even if the caller's process continues.
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

func (p *Process) begin() (*exec.Cmd, error) {
	log, err := openLog(p.command.LogFile)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own file descriptor
	cmd := p.command.prepare(log)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.cmd = cmd
	return cmd, nil
}

// again restarts the program if Restart returns true. Otherwise, it returns nil.
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

// PID returns the process ID. After the process has ended, another process may have the same ID.
func (p *Process) PID() int { return p.process().Pid }

// LogFile returns the path of the log file.
func (p *Process) LogFile() string { return p.command.LogFile }

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns how the process ended. It returns nil if the process is running or ended with exit code 0, and an
// *exec.ExitError otherwise.
func (p *Process) Err() error {
	select {
	case <-p.exited:
		return p.exit
	default:
		return nil
	}
}

// WaitReady calls check every 50 ms until check returns nil. If the process or ctx ends first, WaitReady returns an
// error that contains the last error from check and the last lines of the log.
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

// Stop asks the process to end, and returns when it has ended. If the process is still running when the grace period
// or ctx ends, Stop kills it and returns an error that wraps ErrForced. Stop does nothing if the process has already
// ended.
func (p *Process) Stop(ctx context.Context) error {
	defer p.forget()
	p.end()
	if !p.send(syscall.SIGTERM) {
		return nil
	}
	p.send(syscall.SIGCONT) // a paused process cannot handle signals
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

// Kill ends the process immediately, like a crash, and returns when it has ended.
func (p *Process) Kill() error {
	defer p.forget()
	p.end()
	p.send(syscall.SIGKILL)
	<-p.exited
	return nil
}

// Pause freezes the process as if it hung. Its connections stay open, but it does not respond.
func (p *Process) Pause() error { return p.must(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *Process) Resume() error { return p.must(syscall.SIGCONT) }

// Signal sends a signal to the process. It returns os.ErrProcessDone if the process has ended.
func (p *Process) Signal(sig os.Signal) error { return p.must(sig) }

func (p *Process) must(sig os.Signal) error {
	if err := p.process().Signal(sig); err != nil {
		return fmt.Errorf("send %v to %s: %w", sig, p.command.Name, err)
	}
	return nil
}

// end prevents the program from being restarted.
func (p *Process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
}

// send sends a signal, and reports whether there was a process to receive it.
func (p *Process) send(sig os.Signal) bool { return p.process().Signal(sig) == nil }

// forget removes the pid file if the process has ended.
func (p *Process) forget() {
	select {
	case <-p.exited:
		if p.command.PIDFile != "" {
			_ = removeRecord(p.command.PIDFile) // a stale file does no harm, because readers verify it
		}
	default:
	}
}

// lastLines returns the last lines of a log. If the log cannot be read, it returns the reason.
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
