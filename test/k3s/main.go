// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command k3s replaces k3s on machines without a container runtime.
//
// etcd and kube-apiserver are real, and join in the same way as in k3s. Kubelets and the programs in pods are
// simulated. When it is run under the name systemctl, it starts and stops these processes.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"
)

// settings are the test's settings, from the file settings.json next to the program.
type settings struct {
	// Out is the folder with the file "ran", to which each command appends a line. Shared is a folder that all machines
	// share, with the certificates.
	Out, Shared string
	// Address is the address of the machine.
	Address string
	// Programs are the paths of the programs.
	Etcd, Etcdutl, APIServer, Kubectl, Agent string
}

// configuration is the part of the configuration file that k3s reads.
type configuration struct {
	Node        string   `json:"node-name"`
	Server      string   `json:"server"`
	ClusterInit bool     `json:"cluster-init"`
	Token       string   `json:"token"`
	Labels      []string `json:"node-label"`
}

const (
	configFile = "/etc/rancher/k3s/config.yaml"
	data       = "/var/lib/rancher/k3s"
	// versionFile contains the version of the installed program.
	versionFile = "/usr/local/k3s-version"
	resetFlag   = data + "/server/db/reset-flag"
	upFile      = "/run/k3s.up"
	pidFile     = "/run/k3s.pid"
	kubeconfig  = "/etc/rancher/k3s/k3s.yaml"
	adminToken  = "stand-in-admin"
)

var set settings

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "k3s (a stand-in):", err)
		os.Exit(1)
	}
}

func run() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(self), "settings.json"))
	if err == nil {
		err = json.Unmarshal(raw, &set)
	}
	if err != nil {
		return err
	}
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "systemctl" {
		return systemctl(args)
	}
	switch args[0] {
	case "server", "agent":
		if slices.Contains(args, "--cluster-reset") {
			return reset(args[1:])
		}
		return serve(args[0])
	case "relay":
		return relay(args[1], args[2])
	case "kubectl":
		return kubectl(args[1:])
	case "--version":
		version, err := os.ReadFile(versionFile)
		fmt.Printf("k3s version %s (stand-in)\ngo version of the test\n", strings.TrimSpace(string(version)))
		return err
	case "certificate":
		note(args[0], args[1])
		return nil
	case "etcd-snapshot":
		return snapshots(args)
	case "secrets-encrypt":
		return encrypt(args[1])
	}
	return fmt.Errorf("the stand-in does not know %v", args)
}

// note appends a line to the list of commands that the machine has run.
func note(words ...string) {
	f, err := os.OpenFile(filepath.Join(set.Out, "ran"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = fmt.Fprintln(f, strings.Join(words, " "))
		_ = f.Close()
	}
}

// systemctl starts and stops k3s like a unit of type notify: a start returns when the unit is up.
func systemctl(args []string) error {
	unit := args[len(args)-1]
	switch args[0] {
	case "daemon-reload", "enable", "disable":
		return nil
	case "is-active":
		if _, err := os.Stat(upFile); err != nil {
			return err
		}
		fmt.Println("active")
		return nil
	case "cat":
		_, err := os.Stat(versionFile)
		return err
	case "stop":
		note("stop")
		stop()
		return nil
	case "restart":
	default:
		return fmt.Errorf("the stand-in does not know systemctl %v", args)
	}
	stop()
	kind := "server"
	if unit == "k3s-agent" {
		kind = "agent"
	}
	version, err := os.ReadFile(versionFile)
	if err != nil {
		return fmt.Errorf("k3s is not installed: %w", err)
	}
	note("start", kind, strings.TrimSpace(string(version)))
	log, err := os.OpenFile(filepath.Join(set.Out, "k3s.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command("/usr/local/bin/k3s", kind)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	for range 600 {
		if _, err := os.Stat(upFile); err == nil {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("%s did not start: %w", unit, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s did not start", unit)
}

// stop ends k3s and everything that it has started.
func stop() {
	raw, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	var pid int
	if _, err := fmt.Sscan(string(raw), &pid); err == nil {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		for range 100 {
			if syscall.Kill(-pid, 0) != nil {
				break
			}
			<-time.After(50 * time.Millisecond)
		}
	}
	_ = os.Remove(pidFile)
	_ = os.Remove(upFile)
}

func readConfiguration() (config configuration, err error) {
	raw, err := os.ReadFile(configFile)
	if err == nil {
		err = yaml.Unmarshal(raw, &config)
	}
	return config, err
}

// serve runs k3s itself.
func serve(kind string) error {
	_, _ = os.Remove(upFile), os.Remove(resetFlag)
	if err := os.WriteFile(pidFile, []byte(fmt.Sprint(os.Getpid())), 0o600); err != nil {
		return err
	}
	config, err := readConfiguration()
	if err != nil {
		return err
	}
	server := "https://127.0.0.1:6443"
	if kind == "server" {
		if err := startServer(config); err != nil {
			return err
		}
		config.Labels = append(config.Labels, "node-role.kubernetes.io/etcd=true")
		go deploy()
	} else {
		server = config.Server
	}
	if err := writeKubeconfig(server); err != nil {
		return err
	}
	if err := os.WriteFile(upFile, nil, 0o600); err != nil { // systemd is told before the kubelet has registered
		return err
	}
	if err := authenticate(config.Node); err != nil {
		return err
	}
	if err := register(config); err != nil {
		return err
	}
	kubelet := &http.Server{
		Addr: "127.0.0.1:10248", ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	}
	return kubelet.ListenAndServe()
}

// register creates the Node of this machine, and reports it as Ready.
func register(config configuration) error {
	labels := map[string]string{}
	for _, label := range config.Labels {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	node, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": config.Node, "labels": labels}})
	if err != nil {
		return err
	}
	version, _ := os.ReadFile(versionFile)
	status := fmt.Sprintf(`{"status":{"nodeInfo":{"kubeletVersion":%q,"architecture":"","bootID":"","containerRuntimeVersion":"","kernelVersion":"","kubeProxyVersion":"","machineID":"","operatingSystem":"linux","osImage":"","systemUUID":""},"conditions":[{"type":"Ready","status":"True","reason":"StandIn","message":"there is no kubelet"}]}}`, strings.TrimSpace(string(version)))
	for range 300 {
		apply := exec.Command(set.Kubectl, "--kubeconfig", kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", "-")
		apply.Stdin = strings.NewReader(string(node))
		if out, err := apply.CombinedOutput(); err != nil {
			fmt.Println("register:", string(out))
			<-time.After(500 * time.Millisecond)
			continue
		}
		if out, err := exec.Command(set.Kubectl, "--kubeconfig", kubeconfig, "patch", "node", config.Node, "--subresource=status", "--type=merge", "-p", status).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	return fmt.Errorf("the node %s could not be registered", config.Node)
}

func writeKubeconfig(server string) error {
	return os.WriteFile(kubeconfig, []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "%s", certificate-authority: %s/ca.crt}}]
users: [{name: u, user: {token: %s}}]
`, server, set.Shared, adminToken)), 0o600)
}
