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
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover/test/lab"
)

const (
	// marker is the variable in the environment of all processes of a lab. Its value is the lab's folder.
	marker = "DROVER_LAB"

	// socketLimit is how long the path of a Unix socket may be.
	socketLimit = 100

	// lockLimit is how long to wait for another program that changes the lab.
	lockLimit = 10 * time.Second
)

// Options describe a lab to bring up.
type Options struct {
	File File
	// Dir is the lab's folder, for root only. Default: DefaultDir(File.Name).
	Dir string
	// Progress receives reports of what takes time.
	Progress io.Writer
	// Labctl is the path of the program labctl, which the processes of a lab run. Default: this program.
	Labctl string
	// Users maps the name of a cluster to the users, besides the administrator, that log in with a token.
	Users map[string][]lab.User
	// APIServerArgs maps the name of a cluster to more arguments of its API server.
	APIServerArgs map[string][]string
}

// A Lab is a running lab. It lives on when the program that brought it up ends.
type Lab struct {
	dir  string
	file File
	plan plan
	out  *progress
}

// DefaultDir returns the folder of the lab of that name in the user's cache.
func DefaultDir(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w: set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(cache, "drover", "labs", name), nil
}

// Up brings up what the file describes, and returns when all nodes are ready. What runs already stays, and what ended
// is started again. After an error, or when this program is killed, another Up continues, and Down removes the lab's
// processes and files.
func Up(ctx context.Context, options Options) (*Lab, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	dir, err := labDir(options.Dir, options.File.Name)
	if err != nil {
		return nil, err
	}
	l := &Lab{dir: dir, file: options.File, plan: newPlan(options.File), out: newProgress(options.Progress)}
	if err := CheckDir(dir); err != nil {
		return nil, fmt.Errorf("bring up lab %s: %w", l.file.Name, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("bring up lab %s: %w", l.file.Name, err)
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := l.up(ctx, options); err != nil {
		return nil, fmt.Errorf("bring up lab %s: %w", l.file.Name, err)
	}
	return l, nil
}

// CheckDir returns an error if a lab cannot be in that folder.
func CheckDir(dir string) error {
	if l := (&Lab{dir: dir}); len(l.socket()) > socketLimit {
		return fmt.Errorf("the name of the folder %s is too long for a socket: choose a shorter one", dir)
	}
	return nil
}

// Open returns the lab in a folder, or the one of that name if dir is "".
func Open(dir, name string) (*Lab, error) {
	dir, err := labDir(dir, name)
	if err != nil {
		return nil, err
	}
	l := &Lab{dir: dir, out: newProgress(nil)}
	content, err := os.ReadFile(l.filePath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open lab: there is none in %s: labctl up -f FILE makes it", dir)
	}
	if err == nil {
		err = json.Unmarshal(content, &l.file)
	}
	if err != nil {
		return nil, fmt.Errorf("open lab: %w", err)
	}
	l.plan = newPlan(l.file)
	return l, nil
}

func labDir(dir, name string) (string, error) {
	if dir == "" {
		return DefaultDir(name)
	}
	return filepath.Abs(dir)
}

func (l *Lab) filePath() string               { return filepath.Join(l.dir, "lab.json") }
func (l *Lab) socket() string                 { return filepath.Join(l.dir, "egress.sock") }
func (l *Lab) labctl() string                 { return filepath.Join(l.dir, "labctl") }
func (l *Lab) pause() string                  { return filepath.Join(l.dir, "pause.tar") }
func (l *Lab) pids() string                   { return filepath.Join(l.dir, "pids") }
func (l *Lab) planeDir(cluster string) string { return filepath.Join(l.dir, "clusters", cluster) }
func (l *Lab) nodeDir(name string) string     { return filepath.Join(l.dir, "nodes", name) }

// Dir returns the lab's folder.
func (l *Lab) Dir() string { return l.dir }

// Kubeconfig returns the path of the administrator's kubeconfig of a cluster.
func (l *Lab) Kubeconfig(cluster string) string { return filepath.Join(l.dir, cluster+".kubeconfig") }

// NodeLog returns the path of the log of a program of a node: containerd, kubelet, kube-proxy, labctl, which serves
// DNS, or network-policies.
func (l *Lab) NodeLog(node, program string) string {
	return filepath.Join(l.nodeDir(node), "root/var/log/lab", program+".log")
}

func (l *Lab) up(ctx context.Context, options Options) error {
	if err := l.keepFile(); err != nil {
		return err
	}
	if err := l.checkInotify(); err != nil {
		return err
	}
	assets, err := lab.Binaries(ctx, options.Progress, lab.Etcd, lab.APIServer, lab.ControllerManager, lab.Scheduler, lab.Kubelet, lab.KubeProxy, lab.Kubectl)
	if err != nil {
		return err
	}
	if err := l.prepare(ctx, options.Labctl); err != nil {
		return err
	}
	if err := l.startPlanes(ctx, options, assets); err != nil {
		return err
	}
	if err := l.startRelay(ctx); err != nil {
		return err
	}
	start := time.Now()
	var started []nodePlan
	for _, n := range l.plan.nodes {
		running, err := l.nodeRuns(n.Name)
		if err != nil {
			return err
		}
		if running {
			continue
		}
		if err := l.startNode(ctx, n, assets); err != nil {
			return err
		}
		started = append(started, n)
	}
	return l.waitForNodes(ctx, started, start)
}

// keepFile writes the file into the folder. It refuses a file that differs from the file that the lab was brought up
// with.
func (l *Lab) keepFile() error {
	content, err := json.Marshal(l.file)
	if err != nil {
		return err
	}
	kept, err := os.ReadFile(l.filePath())
	if err == nil && string(kept) != string(content) {
		return fmt.Errorf("its file has changed: labctl down %s first", l.file.Name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(l.filePath(), content, 0o600)
}

// prepare copies the program that the lab's processes run, since "go run" removes its own, and makes the pause image.
func (l *Lab) prepare(ctx context.Context, labctl string) error {
	if labctl == "" {
		var err error
		if labctl, err = os.Executable(); err != nil {
			return err
		}
	}
	if err := copyFile(labctl, l.labctl(), 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(l.pause()); err == nil {
		return nil
	}
	return l.out.during("building the pause image", func() error { return writePauseImage(ctx, l.pause()) })
}

// environment marks a process as one of this lab.
func (l *Lab) environment() []string { return append(os.Environ(), marker+"="+l.dir) }

// startPlanes starts all control planes at once: most of the time they wait for their own parts.
func (l *Lab) startPlanes(ctx context.Context, options Options, assets lab.Assets) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range l.file.Clusters {
		group.Go(func() error { return l.startPlane(ctx, c.Name, options, assets) })
	}
	return group.Wait()
}

// startPlane starts a control plane, unless all of it runs.
func (l *Lab) startPlane(ctx context.Context, cluster string, options Options, assets lab.Assets) error {
	dir := l.planeDir(cluster)
	pids := filepath.Join(dir, "pids")
	running, err := lab.Running(pids)
	if err != nil {
		return err
	}
	if len(running) == 4 {
		if _, err := os.Stat(l.Kubeconfig(cluster)); err == nil {
			return nil
		}
	}
	if err := lab.StopDetached(ctx, pids); err != nil {
		return err
	}
	return l.out.during("starting the control plane of "+cluster, func() error {
		plane, err := lab.Start(ctx, lab.Options{
			Name: cluster, Dir: dir, Assets: assets, Detached: true, ExtraEnv: []string{marker + "=" + l.dir},
			Users:     options.Users[cluster],
			ExtraArgs: map[string][]string{lab.APIServer: options.APIServerArgs[cluster]},
			Nodes:     &lab.NodeSupport{Address: l.plan.gateway.Addr().String(), EgressSocket: l.socket()},
		})
		if err != nil {
			return err
		}
		return plane.WriteKubeconfig(l.Kubeconfig(cluster))
	})
}

// startRelay starts the relay, unless it runs. The nodes hang on its bridge: if it has ended, they are started again.
func (l *Lab) startRelay(ctx context.Context) error {
	running, err := lab.Running(l.pids())
	if err != nil || slices.Contains(running, "relay") {
		return err
	}
	if err := lab.StopDetached(ctx, l.pids()); err != nil {
		return err
	}
	// The shell gives the relay the network namespace of the machine, as file descriptor 3.
	script := `exec 3</proc/self/ns/net; exec unshare --net "$@"`
	args := []string{"-c", script, "relay", l.labctl(), relayCommand, l.plan.gateway.String(), l.socket()}
	for _, c := range l.file.Clusters {
		port, err := l.apiPort(c.Name)
		if err != nil {
			return err
		}
		args = append(args, port)
	}
	for _, port := range l.file.Networking.MachinePorts {
		args = append(args, strconv.Itoa(port))
	}
	relay, err := lab.Command{
		Name: "relay", Path: "/bin/sh", Args: args, Env: l.environment(), Detached: true,
		LogFile: filepath.Join(l.dir, "relay.log"), PIDFile: filepath.Join(l.pids(), "relay.pid"),
	}.Start()
	if err != nil {
		return err
	}
	return relay.WaitReady(ctx, func(context.Context) error {
		_, err := os.Stat(l.socket()) // it listens there last
		return err
	})
}

// relayPID returns the PID of the relay, whose network namespace has the bridge.
func (l *Lab) relayPID() (int, error) {
	content, err := os.ReadFile(filepath.Join(l.pids(), "relay.pid"))
	if err != nil {
		return 0, fmt.Errorf("find the bridge of lab %s: %w", l.file.Name, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// lockDir keeps other programs from changing the lab. The kernel removes the lock when this program ends. A process
// that it was forking just then has the lock until it runs its own program. So the holder of the lock sees all
// processes of the lab by their marker.
func lockDir(ctx context.Context, dir string) (func(), error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockLimit, fmt.Errorf("another program changes the lab in %s: wait for it or end it", dir))
	defer cancel()
	var held *os.File
	err := poll(ctx, func() (err error) {
		held, err = tryLock(dir + ".lock")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lock lab: %w", err)
	}
	return func() { _ = held.Close() }, nil
}

// tryLock locks the file at path, which the last holder may remove before it releases the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	locked, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if named, err := os.Stat(path); err != nil || !os.SameFile(locked, named) {
		return nil, errors.Join(fmt.Errorf("%s was replaced", path), f.Close())
	}
	return f, nil
}
