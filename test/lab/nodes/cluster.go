// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/test/lab"
)

// readyLimit is how long the nodes of a lab may take to become ready, even on a busy machine. On an idle machine,
// they take about 15 s.
const readyLimit = 5 * time.Minute

// RESTConfig returns the administrator's client configuration for a cluster.
func (l *Lab) RESTConfig(cluster string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig(cluster))
	if err != nil {
		return nil, fmt.Errorf("connect to cluster %s: %w", cluster, err)
	}
	config.QPS = -1
	return config, nil
}

func (l *Lab) client(cluster string) (kubernetes.Interface, error) {
	config, err := l.RESTConfig(cluster)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// apiPort returns the port of a cluster's API server. The port is the same on loopback and on the bridge.
func (l *Lab) apiPort(cluster string) (string, error) {
	config, err := l.RESTConfig(cluster)
	if err != nil {
		return "", err
	}
	host, err := url.Parse(config.Host)
	if err != nil {
		return "", err
	}
	return host.Port(), nil
}

func (l *Lab) nodeRuns(name string) (bool, error) {
	running, err := lab.Running(l.pids())
	return slices.Contains(running, "node-"+name), err
}

// startNode starts a node that is not running.
func (l *Lab) startNode(ctx context.Context, n nodePlan, assets lab.Assets) error {
	if err := l.announce(ctx, n); err != nil {
		return err
	}
	spec, err := l.spec(n, assets)
	if err != nil {
		return err
	}
	if err := l.fillNode(n, spec); err != nil {
		return fmt.Errorf("prepare node %s: %w", n.Name, err)
	}
	path := filepath.Join(spec.Dir, "node.json")
	content, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	l.out.say("starting %s at %s", n, n.address.Addr())
	_, err = lab.Command{
		Name: "node " + n.Name, Path: l.labctl(), Args: []string{nodeCommand, path}, Env: l.environment(), Detached: true,
		LogFile: filepath.Join(spec.Dir, "node.log"), PIDFile: filepath.Join(l.pids(), "node-"+n.Name+".pid"),
	}.Start()
	return err
}

// announce creates the objects that a cluster needs before the node starts. It does nothing for a host, because a
// host does not belong to a cluster.
func (l *Lab) announce(ctx context.Context, n nodePlan) error {
	if n.isHost() {
		return nil
	}
	if err := l.createNode(ctx, n); err != nil {
		return err
	}
	if l.file.Networking.NetworkPolicies {
		return l.grantPolicies(ctx, n.cluster)
	}
	return nil
}

// createNode creates the Node object, with its labels and its pod CIDR, before its kubelet would create it.
func (l *Lab) createNode(ctx context.Context, n nodePlan) error {
	client, err := l.client(n.cluster)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels},
		Spec:       corev1.NodeSpec{PodCIDR: n.pods.String(), PodCIDRs: []string{n.pods.String()}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create node %s: %w", n.Name, err)
	}
	return nil
}

func (l *Lab) spec(n nodePlan, assets lab.Assets) (nodeSpec, error) {
	relay, err := l.relayPID()
	if err != nil {
		return nodeSpec{}, err
	}
	m, err := inspect()
	if err != nil {
		return nodeSpec{}, err
	}
	spec := nodeSpec{
		Name: n.Name, Dir: l.nodeDir(n.Name), Cgroup: filepath.Join(l.cgroup(), n.Name),
		RelayPID: relay, Link: n.link, Address: n.address, Gateway: l.plan.gateway.Addr(), Pods: n.pods, Routes: n.routes, CNI: m.cni,
	}
	if spec.Host = n.isHost(); spec.Host {
		spec.Programs = maps.Clone(l.file.Programs)
	} else {
		spec.Policies = l.file.Networking.NetworkPolicies
		spec.Programs = map[string]string{"kubelet": assets[lab.Kubelet], "kube-proxy": assets[lab.KubeProxy], policyProgram: l.labctl()}
	}
	if spec.Programs == nil {
		spec.Programs = map[string]string{}
	}
	spec.Programs["labctl"] = l.labctl()
	return spec, nil
}

// fillNode writes the files that the node needs into its root: configuration, credentials and images.
func (l *Lab) fillNode(n nodePlan, spec nodeSpec) error {
	if err := os.RemoveAll(filepath.Join(spec.root(), imagesDir)); err != nil {
		return err
	}
	if err := os.MkdirAll(spec.root(), 0o755); err != nil {
		return err
	}
	if err := spec.writeConfiguration(snapshotterFor(spec.root())); err != nil {
		return err
	}
	if spec.Host {
		if err := spec.writeHost(); err != nil {
			return err
		}
	} else if err := l.writeCredentials(n, spec.root()); err != nil {
		return err
	}
	images := append([]string{l.pause()}, l.file.Images...)
	for _, c := range l.file.Clusters {
		if c.Name == n.cluster {
			images = append(images, c.Images...)
		}
	}
	for i, path := range images {
		if err := copyFile(path, filepath.Join(spec.root(), imagesDir, fmt.Sprintf("%02d-%s", i, filepath.Base(path))), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// writeCredentials issues the certificates of the kubelet, of kube-proxy, and of the program that enforces
// NetworkPolicies. The DNS server uses the certificate of kube-proxy.
func (l *Lab) writeCredentials(n nodePlan, root string) error {
	port, err := l.apiPort(n.cluster)
	if err != nil {
		return err
	}
	server := "https://" + netip.AddrPortFrom(l.plan.gateway.Addr(), 0).Addr().String() + ":" + port
	dir := l.planeDir(n.cluster)
	kubelet, err := lab.IssueCertificate(dir, lab.Subject{
		User: "system:node:" + n.Name, Groups: []string{"system:nodes"}, Hosts: []string{n.Name, n.address.Addr().String()},
	})
	if err != nil {
		return err
	}
	proxy, err := lab.IssueCertificate(dir, lab.Subject{User: "system:kube-proxy"})
	if err != nil {
		return err
	}
	policies, err := lab.IssueCertificate(dir, lab.Subject{User: policyUser})
	if err != nil {
		return err
	}
	files := map[string][]byte{"etc/lab/ca.crt": kubelet.CA, "etc/lab/kubelet.crt": kubelet.Cert, "etc/lab/kubelet.key": kubelet.Key}
	for name, certificate := range map[string]lab.Certificate{"kubelet": kubelet, "kube-proxy": proxy, policyProgram: policies} {
		if files["etc/lab/"+name+".kubeconfig"], err = kubeconfig(server, certificate); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := writeInto(root, name, content); err != nil {
			return err
		}
	}
	return nil
}

func kubeconfig(server string, c lab.Certificate) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["lab"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.CA}
	config.AuthInfos["lab"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.Cert, ClientKeyData: c.Key}
	config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "lab"}
	config.CurrentContext = "lab"
	return clientcmd.Write(*config)
}

// waitForNodes returns when all nodes are ready. For nodes that have just been started, reports from before the start
// do not count.
func (l *Lab) waitForNodes(ctx context.Context, started []nodePlan, since time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("not within %s", readyLimit))
	defer cancel()
	return l.out.during(fmt.Sprintf("waiting for %d nodes", len(l.plan.nodes)), func() error {
		for _, n := range l.plan.nodes {
			after := time.Time{}
			if slices.ContainsFunc(started, func(s nodePlan) bool { return s.Name == n.Name }) {
				after = since
			}
			isReady := func() error { return l.nodeReady(ctx, n, after) }
			if n.isHost() {
				isReady = func() error { return l.hostReady(n) }
			}
			if err := poll(ctx, isReady); err != nil {
				return fmt.Errorf("%w; see %s and the logs in %s", err, filepath.Join(l.nodeDir(n.Name), "node.log"), filepath.Dir(l.NodeLog(n.Name, "kubelet")))
			}
		}
		return nil
	})
}

// nodeReady returns nil if the node has reported, after the given time, that it is ready. Otherwise, the error says
// why the node is not ready.
func (l *Lab) nodeReady(ctx context.Context, n nodePlan, after time.Time) error {
	client, err := l.client(n.cluster)
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady || condition.LastHeartbeatTime.Time.Before(after) {
			continue
		}
		if condition.Status == corev1.ConditionTrue && !slices.ContainsFunc(node.Spec.Taints, isOfKubernetes) {
			return nil
		}
		return fmt.Errorf("node %s is not ready: %s", n.Name, strings.TrimSpace(condition.Message))
	}
	return errors.New("node " + n.Name + " has not reported yet")
}

// isOfKubernetes reports whether a taint was set by Kubernetes itself to keep pods off the node. Users and Plans also
// cordon nodes, which is not a reason to wait.
func isOfKubernetes(taint corev1.Taint) bool {
	return strings.HasPrefix(taint.Key, "node.kubernetes.io/") && taint.Key != corev1.TaintNodeUnschedulable
}
