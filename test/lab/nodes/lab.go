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
	// marker is the environment variable that all processes of a lab have. Its value is the lab's folder.
	marker = "DROVER_LAB"

	// socketLimit is the maximum length of the path of a Unix socket, in bytes.
	socketLimit = 100

	// lockLimit is how long to wait for another process that is changing the lab.
	lockLimit = 10 * time.Second
)

// Options are the options for bringing up a lab.
type Options struct {
	File File
	// Dir is the lab's folder. Only root has access to it. It defaults to DefaultDir(File.Name).
	Dir string
	// Progress receives reports about steps that take a long time.
	Progress io.Writer
	// Labctl is the path of the labctl binary, which the processes of a lab run. It defaults to the current binary.
	Labctl string
	// Users contains additional users who can authenticate with a token, by cluster name.
	Users map[string][]lab.User
	// APIServerArgs contains additional arguments for the API server, by cluster name.
	APIServerArgs map[string][]string
}

// Lab is a running lab. It continues when the process that brought it up ends.
type Lab struct {
	dir  string
	file File
	plan plan
	out  *progress
}

// DefaultDir returns the folder in the user's cache for the lab with the given name.
func DefaultDir(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w: set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(cache, "drover", "labs", name), nil
}

// Up brings up the lab that the file describes, and returns when all nodes are ready. Parts that are running are left
// unchanged, and parts that have ended are restarted. If Up fails or this process is killed, another call to Up
// continues, and Down removes the lab's processes and files.
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

// CheckDir returns an error if a folder cannot be used for a lab.
func CheckDir(dir string) error {
	if l := (&Lab{dir: dir}); len(l.socket()) > socketLimit {
		return fmt.Errorf("the name of the folder %s is too long for a socket: choose a shorter one", dir)
	}
	return nil
}

// Open returns the lab in a folder. If dir is "", it looks up the lab by name.
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

// Kubeconfig returns the path of the administrator's kubeconfig for a cluster.
func (l *Lab) Kubeconfig(cluster string) string { return filepath.Join(l.dir, cluster+".kubeconfig") }

// NodeLog returns the path of a program's log on a node. The programs are containerd, kubelet, kube-proxy, labctl
// (which serves DNS) and network-policies.
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

// keepFile writes the lab file into the folder. It returns an error if the lab was brought up with a different file.
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

// prepare copies the binary that the lab's processes run, because "go run" removes its binary, and builds the pause
// image.
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

// environment returns an environment that marks a process as part of this lab.
func (l *Lab) environment() []string { return append(os.Environ(), marker+"="+l.dir) }

// startPlanes starts all control planes at the same time, because each of them mostly waits for its own components.
func (l *Lab) startPlanes(ctx context.Context, options Options, assets lab.Assets) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range l.file.Clusters {
		group.Go(func() error { return l.startPlane(ctx, c.Name, options, assets) })
	}
	return group.Wait()
}

// startPlane starts a control plane, unless all of its programs are running.
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

// startRelay starts the relay, unless it is running. The nodes are connected to the relay's bridge, so they are
// restarted if the relay has ended.
func (l *Lab) startRelay(ctx context.Context) error {
	running, err := lab.Running(l.pids())
	if err != nil || slices.Contains(running, "relay") {
		return err
	}
	if err := lab.StopDetached(ctx, l.pids()); err != nil {
		return err
	}
	// The shell passes the machine's network namespace to the relay as file descriptor 3.
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
		_, err := os.Stat(l.socket()) // the relay listens on this socket after everything else
		return err
	})
}

// relayPID returns the PID of the relay, whose network namespace contains the bridge.
func (l *Lab) relayPID() (int, error) {
	content, err := os.ReadFile(filepath.Join(l.pids(), "relay.pid"))
	if err != nil {
		return 0, fmt.Errorf("find the bridge of lab %s: %w", l.file.Name, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// lockDir prevents other processes from changing the lab. The kernel releases the lock when this process ends. If
// this process is just forking a child, the child holds the lock until it executes its own program, and by then it
// has the lab's marker. The holder of the lock therefore sees all processes of the lab by their marker.
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

// tryLock locks the file at path. The previous holder may have removed the file before releasing the lock.
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
