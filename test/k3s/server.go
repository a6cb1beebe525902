// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// startServer starts etcd, which joins the etcd of the server in the configuration, and kube-apiserver.
func startServer(config configuration) error {
	if err := errors.Join(os.MkdirAll(data+"/server/tls", 0o700), os.MkdirAll(data+"/server/manifests", 0o700), os.MkdirAll(data+"/server/db/snapshots", 0o700)); err != nil {
		return err
	}
	for file, from := range map[string]string{"server-ca.crt": "ca.crt", "client-kube-apiserver.crt": "admin.crt", "client-kube-apiserver.key": "admin.key"} {
		raw, err := os.ReadFile(filepath.Join(set.Shared, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(data, "server/tls", file), raw, 0o600)
		}
		if err != nil {
			return err
		}
	}
	if err := startEtcd(config); err != nil {
		return err
	}
	if err := reconcileKeys("127.0.0.1"); err != nil {
		return err
	}
	tokens := data + "/server/tokens.csv"
	if err := os.WriteFile(tokens, []byte(adminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return err
	}
	if err := start(set.APIServer, "--bind-address=0.0.0.0", "--advertise-address="+set.Address, "--secure-port=6443", "--etcd-servers=http://127.0.0.1:2379",
		"--tls-cert-file="+set.Shared+"/server.crt", "--tls-private-key-file="+set.Shared+"/server.key", "--client-ca-file="+set.Shared+"/ca.crt", "--token-auth-file="+tokens,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+set.Shared+"/server.key", "--service-account-signing-key-file="+set.Shared+"/server.key",
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--allow-privileged", "--profiling=false", "--endpoint-reconciler-type=none"); err != nil {
		return err
	}
	if err := writeKubeconfig("https://127.0.0.1:6443"); err != nil {
		return err
	}
	for range 600 {
		if exec.Command(set.Kubectl, "--kubeconfig", kubeconfig, "get", "--raw", "/readyz").Run() == nil {
			return nil
		}
		<-time.After(200 * time.Millisecond)
	}
	return errors.New("kube-apiserver is not ready")
}

// startEtcd starts etcd. If etcd has no data, it joins the etcd of the server in the configuration.
func startEtcd(config configuration) (err error) {
	peer := "http://" + set.Address + ":2380"
	members, state := []string{config.Node + "=" + peer}, "new"
	dir := data + "/server/db/etcd"
	if _, err := os.Stat(filepath.Join(dir, tombstone)); err == nil && config.Server != "" {
		fmt.Println("tombstone file has been detected, removing data dir to rejoin the cluster")
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if _, err := os.Stat(dir); err != nil && config.Server != "" {
		to, err := url.Parse(config.Server)
		if err == nil {
			err = reconcileKeys(to.Hostname())
		}
		if err != nil {
			return err
		}
		if members, err = join(config, peer); err != nil {
			return err
		}
		state = "existing"
	}
	return start(set.Etcd, "--name="+config.Node, "--data-dir="+dir, "--log-level=warn", "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379,http://"+set.Address+":2379", "--advertise-client-urls=http://"+set.Address+":2379", "--listen-metrics-urls=http://127.0.0.1:2381",
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster="+strings.Join(members, ","), "--initial-cluster-state="+state)
}

// start starts a program in the process group of k3s.
func start(program string, args ...string) error {
	command := exec.Command(program, args...)
	log := &bytes.Buffer{} // read once the program has ended
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if program == set.Etcd {
		command.Stderr = io.MultiWriter(os.Stderr, log)
	}
	if err := command.Start(); err != nil {
		return err
	}
	go func() {
		err := command.Wait()
		fmt.Println(program, "has ended:", err)
		if strings.Contains(log.String(), "data-dir used by this member must be removed") {
			fmt.Println("this node has been removed from the cluster please restart k3s to rejoin the cluster")
			if os.WriteFile(filepath.Join(data, "server/db/etcd", tombstone), nil, 0o600) == nil {
				return
			}
		}
		os.Exit(1)
	}()
	return nil
}

// tombstone is the file that marks the member as removed from etcd.
const tombstone = "tombstone"

// member is a member of etcd.
type member struct {
	ID       string
	Name     string
	PeerURLs []string
}

// etcd sends a request to the etcd of a machine, through its gateway.
func etcd(host, path string, request any) ([]member, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: 10 * time.Second}
	resp, err := client.Post("http://"+host+":2379/v3/cluster/member/"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("etcd %s: %s %s (%w)", path, resp.Status, raw, err)
	}
	var answer struct{ Members []member }
	return answer.Members, json.Unmarshal(raw, &answer)
}

// join adds this machine to the etcd of a server, and returns all members.
func join(config configuration, peer string) (all []string, err error) {
	to, err := url.Parse(config.Server)
	if err != nil {
		return nil, err
	}
	var members []member
	for range 60 { // etcd takes one while the others are healthy
		if members, err = etcd(to.Hostname(), "add", map[string]any{"peerURLs": []string{peer}}); err == nil {
			break
		}
		fmt.Println("join:", err)
		<-time.After(time.Second)
	}
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		name := m.Name
		if slices.Contains(m.PeerURLs, peer) {
			name = config.Node
		}
		all = append(all, name+"="+m.PeerURLs[0])
	}
	return all, nil
}

// kubectl is the kubectl of k3s. When a node is deleted, k3s also deletes the node's password and removes its member
// from etcd.
func kubectl(args []string) error {
	all := append([]string{"--kubeconfig", kubeconfig}, args...)
	if len(args) < 3 || args[0] != "delete" || args[1] != "node" {
		return syscall.Exec(set.Kubectl, append([]string{"kubectl"}, all...), os.Environ())
	}
	name := args[2+slices.IndexFunc(args[2:], func(arg string) bool { return !strings.HasPrefix(arg, "-") })]
	members, err := etcd("127.0.0.1", "list", map[string]any{})
	if err != nil {
		return err
	}
	password := []string{"--kubeconfig", kubeconfig, "-n", "kube-system", "delete", "secret", passwordOf(name), "--ignore-not-found"}
	for _, words := range [][]string{all, password} {
		if out, err := exec.Command(set.Kubectl, words...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	for _, m := range members {
		if m.Name == name {
			if err := removeMember(m); err != nil {
				return err
			}
			note("remove", m.Name)
		}
	}
	return nil
}

// removeMember removes a member from etcd. etcd refuses this while a member has just joined or started. k3s then
// retries: a finalizer keeps the node until the member is removed.
func removeMember(m member) (err error) {
	for range 120 {
		_, err = etcd("127.0.0.1", "remove", map[string]any{"ID": m.ID})
		if err == nil || strings.Contains(err.Error(), "member not found") {
			return nil
		}
		fmt.Println("remove:", err)
		<-time.After(500 * time.Millisecond)
	}
	return err
}

// deploy applies the manifests, as k3s does. On one server, it also runs the agent, in place of a kubelet that starts
// the agent's pod.
func deploy() {
	for ; ; <-time.After(time.Second) {
		file := data + "/server/manifests/drover-agent.yaml"
		if _, err := os.Stat(file); err == nil {
			if out, err := exec.Command(set.Kubectl, "--kubeconfig", kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", file).CombinedOutput(); err != nil {
				fmt.Println("deploy:", string(out))
				continue
			}
		}
		if err := runAgent(); err != nil {
			fmt.Println("agent:", err)
		}
	}
}

// runAgent runs the agent as specified in its Deployment, if no other server does.
func runAgent() error {
	lock, err := os.OpenFile(filepath.Join(set.Shared, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil
	}
	get := func(args ...string) (string, error) {
		out, err := exec.Command(set.Kubectl, append([]string{"--kubeconfig", kubeconfig, "-n", "drover-agent"}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	deployment, err := get("get", "deployment", "drover-agent", "-o", "json", "--ignore-not-found")
	if err != nil || deployment == "" {
		return err
	}
	var object struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Env []struct{ Name, Value string }
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(deployment), &object); err != nil {
		return err
	}
	token, err := get("create", "token", "drover-agent", "--duration=24h")
	if err != nil {
		return err
	}
	own := "/run/agent.kubeconfig"
	raw, err := os.ReadFile(kubeconfig)
	if err == nil {
		err = os.WriteFile(own, bytes.ReplaceAll(raw, []byte(adminToken), []byte(token)), 0o600)
	}
	if err != nil {
		return err
	}
	agent := exec.Command(set.Agent, "--kubeconfig="+own)
	agent.Env = append(os.Environ(), "DROVER_NAMESPACE=drover-agent", "DROVER_LISTEN=127.0.0.1:18080", "DROVER_SOCKET=/run/drover-agent.sock")
	for _, e := range object.Spec.Template.Spec.Containers[0].Env {
		if e.Value != "" {
			agent.Env = append(agent.Env, e.Name+"="+e.Value)
		}
	}
	agent.Stdout, agent.Stderr = os.Stdout, os.Stderr
	return agent.Run()
}

// relay forwards connections to an address of this machine to a socket, behind which is the hub. There is no other
// connection from the machine's network to the outside.
func relay(address, socket string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		in, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("unix", socket)
			if err != nil {
				return
			}
			defer out.Close()
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			_, _ = io.Copy(in, out)
		}()
	}
}
