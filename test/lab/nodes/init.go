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

// A service is a program that the first process of a node keeps running.
type service struct {
	name string
	args []string
	pid  int
}

// services are the services that run in addition to containerd, once the images are loaded.
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

// runInit is the first process of a node, in its namespaces. It returns only with an error, and the node ends with it.
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

// setEnvironment leaves none of the machine's variables to the programs of the node: there is no folder $TMPDIR in it,
// and no proxy leads out of it.
func setEnvironment() error {
	lab := os.Getenv(marker)
	os.Clearenv()
	return errors.Join(os.Setenv(marker, lab), os.Setenv("PATH", nodePath), os.Setenv("HOME", "/root"))
}

// setUpNetwork gives the node its addresses, its routes and the rule that lets its pods reach addresses outside the
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
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), // of this network namespace
		command("nft", rules),
	)
}

func (s *service) log() string { return logOf(s.name) }

func logOf(name string) string { return filepath.Join("/var/log/lab", name+".log") }

// start runs the service with its output appended to its log.
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

// startProcess runs a program with its output appended to the log of that name, and returns its PID. keep waits for it.
// No environment means the environment of this process.
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
	return pid, process.Release() // it forgets the PID
}

// importImages waits for containerd and gives it the tarballs of the node.
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

// servesKubelets returns nil when containerd serves its clients, kubelets among them. It tries that once in its life,
// and runs on without if it fails, as where the machine has no inotify instance left at that moment. Then it is started
// again.
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

// criRuns reports whether, of the plugins that ctr lists, the one for kubelets runs.
func criRuns(plugins string) bool {
	for line := range strings.Lines(plugins) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "io.containerd.grpc.v1" && f[1] == "cri" {
			return f[len(f)-1] == "ok"
		}
	}
	return false
}

// keep starts each service again that ends, and collects the processes that lost their parents, as the first process of
// a machine does. manager is the service manager of a host, nil on a node.
func keep(services []*service, manager *serviceManager) error {
	restart := make(chan *service)
	ended := make(chan int)
	var requests chan func() // blocks for ever on a node
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
		case !errors.Is(err, syscall.EINTR): // no child is left for the moment: each service is about to start again
			<-time.After(restartPause)
		}
	}
}
