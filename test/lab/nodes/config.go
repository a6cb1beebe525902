// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

const pauseImage = "drover.lab/pause:1"

// containerdConfig uses format version 2, which is supported by containerd 1.6 and later.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "%s"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
`

// cniConfig connects each pod to its node with a separate device. Nodes route between these devices, so there is
// neither a bridge nor NAT in between.
const cniConfig = `{
  "cniVersion": "0.4.0",
  "name": "lab",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
  ]
}
`

type object = map[string]any

// kubeletConfig disables features that do not work for nodes that share a machine. For example, eviction and garbage
// collection depend on the usage of the machine's disk.
func kubeletConfig() object {
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false}, "webhook": object{"enabled": true}, "x509": object{"clientCAFile": "/etc/lab/ca.crt"},
		},
		"authorization":               object{"mode": "Webhook"},
		"tlsCertFile":                 "/etc/lab/kubelet.crt",
		"tlsPrivateKeyFile":           "/etc/lab/kubelet.key",
		"containerRuntimeEndpoint":    "unix://" + containerdSocket,
		"cgroupDriver":                "cgroupfs",
		"failCgroupV1":                false,
		"failSwapOn":                  false,
		"clusterDNS":                  []string{dnsIP},
		"clusterDomain":               "cluster.local",
		"resolvConf":                  "/etc/resolv.conf",
		"imageGCHighThresholdPercent": 100,
		"evictionHard":                object{"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
		"nodeStatusReportFrequency":   "10s",
		"nodeLeaseDurationSeconds":    20,
		"serializeImagePulls":         false,
		"syncFrequency":               "10s",
		"shutdownGracePeriod":         "0s",
		"volumeStatsAggPeriod":        "0s",
		"protectKernelDefaults":       false,
	}
}

func kubeProxyConfig() object {
	return object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode":             "nftables",
		"clientConnection": object{"kubeconfig": "/etc/lab/kube-proxy.kubeconfig"},
		"detectLocalMode":  "InterfaceNamePrefix",
		"detectLocal":      object{"interfaceNamePrefix": "veth"},
		// Each of the following values prevents kube-proxy from changing a setting of the whole machine.
		"conntrack": object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
}

// writeConfiguration writes the configuration files of a node's programs into the node's root.
func (s nodeSpec) writeConfiguration(snapshotter string) error {
	files := map[string]string{
		"etc/hostname":               s.Name + "\n",
		"etc/hosts":                  "127.0.0.1 localhost\n" + s.Address.Addr().String() + " " + s.Name + "\n",
		"etc/resolv.conf":            "nameserver " + dnsIP + "\n",
		"etc/passwd":                 "root:x:0:0:root:/root:/bin/sh\n",
		"etc/group":                  "root:x:0:\n",
		"etc/containerd/config.toml": fmt.Sprintf(containerdConfig, snapshotter),
	}
	network, configs := "etc/cni/net.d/10-lab.conflist", map[string]object{"etc/lab/kubelet.yaml": kubeletConfig(), "etc/lab/kube-proxy.yaml": kubeProxyConfig()}
	if s.Host {
		network, configs = networkOfHosts, nil
		files["etc/resolv.conf"] = "nameserver 127.0.0.1\n" // nothing listens there
	}
	files[network] = fmt.Sprintf(cniConfig, s.Pods)
	for name, config := range configs {
		content, err := yaml.Marshal(config)
		if err != nil {
			return fmt.Errorf("configure node %s: %w", s.Name, err)
		}
		files[name] = string(content)
	}
	for _, name := range []string{"etc/os-release", "etc/ld.so.cache", "etc/protocols", "etc/services", "etc/nsswitch.conf"} {
		if content, err := os.ReadFile("/" + name); err == nil { // copy the file from the machine, if it exists
			files[name] = string(content)
		}
	}
	for name, content := range files {
		if err := writeInto(s.root(), name, []byte(content)); err != nil {
			return fmt.Errorf("configure node %s: %w", s.Name, err)
		}
	}
	return nil
}

func writeInto(root, name string, content []byte) error {
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}
