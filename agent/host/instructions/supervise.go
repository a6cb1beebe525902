// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

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
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// outputTail is how much of an instruction's output is kept, in bytes.
	outputTail = 8 << 10
	// pipeDelay is how long a supervisor waits for output after a command has exited. A service that the command
	// started may keep the output open.
	pipeDelay = 2 * time.Second
	// defaultPath and defaultHome are the values of PATH and HOME for commands if the agent itself does not have
	// these variables.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultHome = "/root"
)

// Supervise runs the instruction in a directory of the journal and writes its result. It does nothing if the
// instruction has already started. Supervise is called in a separate process that outlives the agent. If the
// instruction restarts or upgrades the agent, the new agent therefore finds the running instruction or its result.
func Supervise(ctx context.Context, entry string) error {
	held, err := lock(filepath.Join(entry, fileLock))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil // another supervisor is running the instruction
	} else if err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	defer held.Close()
	raw, err := os.ReadFile(filepath.Join(entry, fileInstruction))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the instruction has ended
	} else if err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	var instruction protocol.HostInstruction
	if err := json.Unmarshal(raw, &instruction); err != nil {
		return errors.New("supervise: the instruction in the journal cannot be read")
	}
	if err := begin(entry, instruction.Digest()); errors.Is(err, fs.ErrExist) {
		return nil // the instruction has already started and must not run again
	} else if err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go awaitEnd(ctx, entry, cancel)
	if err := writeResult(entry, execute(ctx, instruction)); err != nil {
		return fmt.Errorf("supervise: write the result: %w", err)
	}
	return nil
}

// endPoll is the interval at which a supervisor checks whether to end its instruction.
const endPoll = 500 * time.Millisecond

// awaitEnd calls the end function when the agent requests the end of the instruction. It returns after the call or when
// ctx is done.
func awaitEnd(ctx context.Context, entry string, end func()) {
	for await.Time(ctx, endPoll) {
		if _, err := os.Stat(filepath.Join(entry, fileEnd)); err == nil {
			end()
			return
		}
	}
}

// execute runs a command until it exits, its timeout has passed, or ctx is done.
func execute(ctx context.Context, instruction protocol.HostInstruction) Result {
	ctx, cancel := context.WithTimeout(ctx, instruction.Timeout())
	defer cancel()
	output := &tail{limit: outputTail}
	command := exec.CommandContext(ctx, instruction.Command[0], instruction.Command[1:]...)
	command.Env = environment(instruction)
	command.Stdout, command.Stderr, command.WaitDelay = output, output, pipeDelay
	release := withGroup(command)
	defer release()
	err := command.Run()
	result := Result{Ended: time.Now().UTC(), ExitCode: -1, Output: output.String()}
	if command.ProcessState != nil {
		result.ExitCode = command.ProcessState.ExitCode()
	}
	switch exit := (*exec.ExitError)(nil); {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		result.ExitCode, result.Error = -1, fmt.Sprintf("killed after %s", instruction.Timeout())
	case ctx.Err() != nil:
		result.ExitCode, result.Error = -1, "ended before its time: the next instructions stop the service that it starts"
	case err == nil || errors.Is(err, exec.ErrWaitDelay) || errors.As(err, &exit) && exit.Exited():
	default:
		result.ExitCode, result.Error = -1, "the command did not run to its end: "+err.Error()
	}
	return result
}

func environment(instruction protocol.HostInstruction) []string {
	env := []string{
		"PATH=" + cmp.Or(os.Getenv("PATH"), defaultPath), "HOME=" + cmp.Or(os.Getenv("HOME"), defaultHome),
		"DROVER_INSTRUCTION=" + instruction.ID,
	}
	if self, err := os.Executable(); err == nil {
		env = append(env, protocol.EnvHostAgent+"="+self)
	}
	env = append(env, inherited()...)
	for name, value := range instruction.Env {
		env = append(env, name+"="+value)
	}
	return env
}

// inherited returns the environment variables that commands inherit from the agent: proxies, variables of installers,
// download locations, and trusted CAs. The machine's administrator sets these variables.
func inherited() []string {
	known := []string{
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "GITHUB_URL", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR",
	}
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return !strings.HasPrefix(name, "INSTALL_") && !slices.Contains(known, strings.ToUpper(name))
	})
}

// tail keeps the last bytes that were written to it.
type tail struct {
	limit int
	mu    sync.Mutex // guards the fields below
	bytes []byte
	cut   bool
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = t.cut || len(p) > t.limit
	t.bytes = append(t.bytes, p[max(0, len(p)-t.limit):]...)
	if surplus := len(t.bytes) - t.limit; surplus > 0 {
		t.bytes, t.cut = slices.Delete(t.bytes, 0, surplus), true
	}
	return len(p), nil
}

// String returns the complete lines that have been kept. It omits a partial first line, because the line might contain
// part of a secret, which would not be recognized.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, whole, found := strings.Cut(string(t.bytes), "\n"); t.cut {
		if !found {
			return ""
		}
		return whole
	}
	return string(t.bytes)
}
