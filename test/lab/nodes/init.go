// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	containerdLimit  = 2 * time.Minute
	restartPause     = time.Second
	imagesDir        = "/var/lib/drover-lab/images"
	containerdSocket = "/run/containerd/containerd.sock"
	nodePath         = "/opt/lab:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// service is a program that the first process of a node keeps running.
type service struct {
	name string
	args []string
	pid  int
}

// services returns the services that run in addition to containerd once the images have been imported.
func (s nodeSpec) services() []*service {
	all := []*service{
		{name: "kubelet", args: []string{
			"--config=/etc/lab/kubelet.yaml", "--kubeconfig=/etc/lab/kubelet.kubeconfig",
			"--hostname-override=" + s.Name, "--node-ip=" + s.Address.Addr().String(),
		}},
		{name: "kube-proxy", args: []string{"--config=/etc/lab/kube-proxy.yaml", "--hostname-override=" + s.Name}},
		{name: "labctl", args: []string{dnsCommand, "/etc/lab/kube-proxy.kubeconfig", dnsIP + ":53"}},
	}
	if s.Policies {
		all = append(all, &service{name: policyProgram, args: []string{policiesCommand, "/etc/lab/" + policyProgram + ".kubeconfig", s.Name}})
	}
	return all
}

// runInit runs in the first process of a node, in the node's namespaces. It returns only if there is an error. When
// it returns, the node ends.
func runInit(specPath string) error {
	spec, err := readNodeSpec(specPath)
	if err != nil {
		return err
	}
	if _, err := os.NewFile(3, "linked").Read(make([]byte, 1)); err == nil {
		return errors.New("the pipe of the parent has data")
	}
	all, err := machineHierarchies()
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Sethostname([]byte(spec.Name)), spec.setUpNetwork()); err != nil {
		return err
	}
	if err := spec.enterRoot(all); err != nil {
		return err
	}
	if len(all) == 1 && all[0].isV2() {
		inside := hierarchy{mount: "/sys/fs/cgroup"}
		if err := errors.Join(inside.join("init"), enableControllers(inside.mount)); err != nil {
			return fmt.Errorf("leave the node's cgroup to its pods: %w", err)
		}
	}
	if err := setEnvironment(); err != nil {
		return err
	}
	containerd := &service{name: "containerd", args: []string{"--config=/etc/containerd/config.toml"}}
	if err := containerd.start(); err != nil {
		return err
	}
	if err := importImages(containerd); err != nil {
		return err
	}
	if spec.Host {
		return runHost(containerd)
	}
	all2 := []*service{containerd}
	for _, s := range spec.services() {
		if err := s.start(); err != nil {
			return err
		}
		all2 = append(all2, s)
	}
	return keep(all2, nil)
}

// setEnvironment removes the machine's environment variables from the programs of the node. In the node, the folder
// $TMPDIR does not exist, and no proxy can be reached.
func setEnvironment() error {
	lab := os.Getenv(marker)
	os.Clearenv()
	return errors.Join(os.Setenv(marker, lab), os.Setenv("PATH", nodePath), os.Setenv("HOME", "/root"))
}

// setUpNetwork sets the node's addresses and routes, and the rule that allows its pods to reach addresses outside the
// cluster.
func (s nodeSpec) setUpNetwork() error {
	steps := [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "address", "add", s.Address.String(), "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "route", "add", "default", "via", s.Gateway.String()},
	}
	if !s.Host {
		steps = append(steps, []string{"ip", "address", "add", dnsIP + "/32", "dev", "lo"})
	}
	inside := []string{s.Pods.String()}
	for _, r := range s.Routes {
		steps = append(steps, []string{"ip", "route", "add", r.Pods.String(), "via", r.Via.String()})
		inside = append(inside, r.Pods.String())
	}
	for _, step := range steps {
		if err := command(step[0], step[1:]...); err != nil {
			return err
		}
	}
	rules := fmt.Sprintf(`table ip lab { chain outgoing { type nat hook postrouting priority 90; ip saddr %s ip daddr != { %s } oifname "eth0" masquerade; }; }`,
		s.Pods, strings.Join(inside, ", "))
	if s.Host {
		rules += s.firewall()
	}
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), // affects only the node's network namespace
		command("nft", rules),
	)
}

func (s *service) log() string { return logOf(s.name) }

func logOf(name string) string { return filepath.Join("/var/log/lab", name+".log") }

// start starts the service. The service's output is appended to its log.
func (s *service) start() error {
	path, err := exec.LookPath(s.name)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	if s.pid, err = startProcess(s.name, append([]string{path}, s.args...), nil); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	return nil
}

// startProcess starts a program and returns its PID. The program's output is appended to the log with the given name.
// keep waits for the process. If env is empty, the program inherits the environment of this process.
func startProcess(name string, args, env []string) (int, error) {
	if err := os.MkdirAll(filepath.Dir(logOf(name)), 0o755); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(logOf(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	process, err := os.StartProcess(args[0], args, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{nil, log, log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	pid := process.Pid
	return pid, process.Release() // Release forgets the PID
}

// importImages waits for containerd and imports the node's tarballs into it.
func importImages(containerd *service) error {
	ctx, cancel := context.WithTimeout(context.Background(), containerdLimit)
	defer cancel()
	if err := poll(ctx, containerd.servesKubelets); err != nil {
		return fmt.Errorf("wait for containerd: %w", err)
	}
	tarballs, err := filepath.Glob(imagesDir + "/*")
	if err != nil {
		return err
	}
	for _, path := range tarballs {
		if err := command("ctr", "-n", "k8s.io", "images", "import", path); err != nil {
			return err
		}
	}
	return nil
}

// servesKubelets returns nil when containerd serves kubelets. containerd tries to start its plugin for kubelets only
// once. If the plugin fails, for example because the machine has no inotify instance left, containerd continues
// without the plugin and has to be restarted.
func (s *service) servesKubelets() error {
	output, err := exec.Command("ctr", "plugins", "ls").CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr plugins ls: %w: %s", err, output)
	}
	if criRuns(string(output)) {
		return nil
	}
	fault := fmt.Errorf("it does not serve kubelets, see %s: if too many files are open, raise fs.inotify.max_user_instances", s.log())
	if err := syscall.Kill(s.pid, syscall.SIGKILL); err != nil {
		return errors.Join(fault, err)
	}
	if _, err := syscall.Wait4(s.pid, nil, 0, nil); err != nil {
		return errors.Join(fault, err)
	}
	return errors.Join(fault, s.start())
}

// criRuns reports whether the plugin for kubelets is running, given the list of plugins from ctr.
func criRuns(plugins string) bool {
	for line := range strings.Lines(plugins) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "io.containerd.grpc.v1" && f[1] == "cri" {
			return f[len(f)-1] == "ok"
		}
	}
	return false
}

// keep restarts services that end, and reaps orphaned processes, like the first process of a machine. manager is the
// service manager of a host. It is nil on a node.
func keep(services []*service, manager *serviceManager) error {
	restart := make(chan *service)
	ended := make(chan int)
	var requests chan func() // a nil channel blocks forever; on a node, it stays nil
	if manager != nil {
		requests = manager.requests
	}
	go wait(ended)
	for {
		select {
		case pid := <-ended:
			for _, s := range services {
				if s.pid == pid {
					fmt.Fprintf(os.Stderr, "%s %s ended, it is started again\n", time.Now().Format(time.RFC3339), s.name)
					time.AfterFunc(restartPause, func() { restart <- s })
				}
			}
			if manager != nil {
				manager.ended(pid)
			}
		case serve := <-requests:
			serve()
		case s := <-restart:
			if err := s.start(); err != nil {
				return err
			}
		}
	}
}

// wait sends the PIDs of children that have ended.
func wait(ended chan<- int) {
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		switch {
		case err == nil:
			ended <- pid
		case !errors.Is(err, syscall.EINTR): // no children at the moment; all services are about to be restarted
			<-time.After(restartPause)
		}
	}
}
