// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	managerSocket = "/run/lab-systemctl.sock"
	wantsFolder   = "/etc/systemd/system/multi-user.target.wants"

	// stopLimit is how long a service may take to end after SIGTERM, as in systemd.
	stopLimit = 90 * time.Second
)

// States of a unit, with the names that systemctl uses.
const (
	unitActive     = "active"
	unitActivating = "activating" // the unit is waiting to be restarted
	unitInactive   = "inactive"
)

// serviceManager replaces systemd on a host. It supports services with one process, and the systemctl commands that
// kubeadm and users need to install software. All of its work is done in the goroutine that handles requests.
type serviceManager struct {
	requests chan func()
	units    map[string]*managed
}

// managed is a unit that has been started at least once.
type managed struct {
	pid   int
	state string
	unit  unit
	// starts is the number of starts. A scheduled restart is dropped if the unit has been started in the meantime.
	starts int
}

// output is the output and the exit code of systemctl.
type output struct {
	Output string `json:"output"`
	Code   int    `json:"code"`
}

// startServiceManager listens for systemctl commands, and starts the units that are enabled.
func startServiceManager() (*serviceManager, error) {
	m := &serviceManager{requests: make(chan func()), units: map[string]*managed{}}
	listener, err := net.Listen("unix", managerSocket)
	if err != nil {
		return nil, fmt.Errorf("listen for systemctl: %w", err)
	}
	go m.serve(listener)
	enabled, err := filepath.Glob(wantsFolder + "/*.service")
	if err != nil {
		return nil, err
	}
	for _, path := range enabled {
		if err := m.start(filepath.Base(path)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return m, nil
}

func (m *serviceManager) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var args []string
			if json.NewDecoder(conn).Decode(&args) != nil || len(args) == 0 {
				return
			}
			done := make(chan output)
			m.requests <- func() { go func(a output) { done <- a }(m.do(args[0], args[1:])) }
			_ = json.NewEncoder(conn).Encode(<-done)
		}()
	}
}

// do executes one command for the named units.
func (m *serviceManager) do(verb string, names []string) output {
	result := output{}
	for _, name := range names {
		one := m.doOne(verb, unitName(name))
		result.Output += one.Output
		result.Code = max(result.Code, one.Code)
	}
	return result
}

func unitName(name string) string {
	if strings.Contains(name, ".") {
		return name
	}
	return name + ".service"
}

func (m *serviceManager) doOne(verb, name string) output {
	var err error
	switch verb {
	case "start":
		err = m.start(name)
	case "stop":
		err = m.stop(name)
	case "enable", "disable":
		err = enable(name, verb == "enable")
	case "is-enabled":
		if _, err := os.Lstat(filepath.Join(wantsFolder, name)); err != nil {
			return output{"disabled\n", 1}
		}
		return output{"enabled\n", 0}
	case "is-active":
		if state := m.state(name); state != unitActive {
			return output{state + "\n", 3}
		}
		return output{unitActive + "\n", 0}
	case "status":
		if _, err := readUnit("/", name); err != nil {
			return output{err.Error() + ".\n", 4}
		}
		return output{"Loaded: loaded\nActive: " + m.state(name) + "\n", 0}
	default:
		return output{"the lab's stand-in for systemctl does not know " + verb + "\n", 1}
	}
	if err != nil {
		return output{err.Error() + "\n", 1}
	}
	return output{}
}

func (m *serviceManager) state(name string) string {
	if u := m.units[name]; u != nil {
		return u.state
	}
	return unitInactive
}

// enable sets whether a unit is started together with the host.
func enable(name string, on bool) error {
	link := filepath.Join(wantsFolder, name)
	if !on {
		if err := os.Remove(link); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if _, err := readUnit("/", name); err != nil {
		return err
	}
	if err := os.MkdirAll(wantsFolder, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("/etc/systemd/system/"+name, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (m *serviceManager) start(name string) error {
	u := m.units[name]
	if u == nil {
		u = &managed{state: unitInactive}
		m.units[name] = u
	}
	if u.state == unitActive {
		return nil
	}
	var err error
	if u.unit, err = readUnit("/", name); err != nil {
		return err
	}
	if u.unit.condition != "" {
		if _, err := os.Stat(u.unit.condition); err != nil {
			u.state = unitInactive
			return nil
		}
	}
	args, env, err := u.unit.start("/")
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	u.starts++
	if u.pid, err = startProcess(strings.TrimSuffix(name, ".service"), args, append(env, marker+"="+os.Getenv(marker))); err != nil {
		m.again(name, u)
		return fmt.Errorf("start %s: %w", name, err)
	}
	u.state = unitActive
	return nil
}

// stop asks a unit to end. The unit is not restarted.
func (m *serviceManager) stop(name string) error {
	u := m.units[name]
	if u == nil {
		return nil
	}
	u.unit.restarts = false
	if u.state != unitActive {
		u.state = unitInactive
		return nil
	}
	pid, starts := u.pid, u.starts
	time.AfterFunc(stopLimit, func() {
		m.requests <- func() {
			if u.state == unitActive && u.starts == starts {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return syscall.Kill(pid, syscall.SIGTERM)
}

// ended records that a process has ended. The exit code is unknown, so a service that is restarted on failure is
// restarted whenever it ends unexpectedly.
func (m *serviceManager) ended(pid int) {
	for name, u := range m.units {
		if u.pid != pid || u.state != unitActive {
			continue
		}
		m.again(name, u)
	}
}

// again restarts a unit that is not running if its file specifies a restart.
func (m *serviceManager) again(name string, u *managed) {
	u.pid, u.state = 0, unitInactive
	if !u.unit.restarts {
		return
	}
	u.state = unitActivating
	starts := u.starts
	time.AfterFunc(u.unit.pause, func() {
		m.requests <- func() {
			if u.state == unitActivating && u.starts == starts {
				_ = m.start(name)
			}
		}
	})
}

// runSystemctl replaces systemctl on a host.
func runSystemctl(args []string, out io.Writer) error {
	verb, now := "", false
	var names []string
	for _, arg := range args {
		switch {
		case arg == "--now":
			now = true
		case strings.HasPrefix(arg, "-"): // options that affect only the output, such as --no-pager
		case verb == "":
			verb = arg
		default:
			names = append(names, arg)
		}
	}
	steps := []string{verb}
	switch {
	case verb == "daemon-reload": // unit files are read at each start
		return nil
	case verb == "restart":
		steps = []string{"stop", "start"}
	case verb == "enable" && now:
		steps = []string{"enable", "start"}
	case verb == "disable" && now:
		steps = []string{"disable", "stop"}
	}
	for _, step := range steps {
		result, err := askManager(step, names)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(out, result.Output); err != nil {
			return err
		}
		if result.Code != 0 {
			os.Exit(result.Code)
		}
		if step == "stop" {
			if err := awaitEnd(names); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitEnd returns when none of the named units is active anymore.
func awaitEnd(names []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit+linkLimit)
	defer cancel()
	return poll(ctx, func() error {
		for _, name := range names {
			result, err := askManager("is-active", []string{name})
			if err != nil {
				return err
			}
			if result.Code == 0 {
				return fmt.Errorf("unit %s has not ended", name)
			}
		}
		return nil
	})
}

func askManager(verb string, names []string) (output, error) {
	conn, err := net.Dial("unix", managerSocket)
	if err != nil {
		return output{}, fmt.Errorf("systemctl %s: %w", verb, err)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(append([]string{verb}, names...)); err != nil {
		return output{}, fmt.Errorf("systemctl %s: %w", verb, err)
	}
	var a output
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return output{}, fmt.Errorf("systemctl %s: %w", verb, err)
	}
	return a, nil
}
