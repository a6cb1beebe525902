// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// alwaysEncrypted is embedded in RKE2, which encrypts Secrets regardless of its configuration.
type alwaysEncrypted struct{ rancher }

func (alwaysEncrypted) checkKeys(Spec) error { return nil }

// rancher is the distribution k3s or RKE2. Both accept the same configuration. The fields contain the differences
// between them, as documented at docs.k3s.io and docs.rke2.io.
type rancher struct {
	// name is the distribution's name, as used in the names of directories and binaries.
	name string
	// script is the distribution's own installer.
	script string
	// installs returns the environment variables that tell the installer which kind of node to install. They do not
	// include the version.
	installs func(kind string) []string
	// joinPort is the port of a server that other hosts connect to when they join.
	joinPort int
	// server and agent are the systemd units.
	server, agent string
	// cleanServer and cleanAgent are the scripts that remove the distribution from a machine.
	cleanServer, cleanAgent []string
	// dataDirVariable is the environment variable that passes the data directory to cleanServer and cleanAgent.
	dataDirVariable string
	// kubectl is the kubectl command line on a server, and config is its kubeconfig.
	kubectl, config string
	// folders lists directories outside PATH that contain binaries.
	folders []string
	// stopPods lists scripts for stopping processes that outlive the server's service: etcd and the API server, if they
	// run as pods. Only the first existing script is run.
	stopPods []string
	// begins is the option for the host that starts a cluster with etcd. It is empty if the distribution always uses
	// etcd.
	begins string
}

var (
	k3s = rancher{
		name: "k3s", script: "https://get.k3s.io", joinPort: 6443, server: "k3s", agent: "k3s-agent",
		installs: func(kind string) []string {
			return []string{"INSTALL_K3S_EXEC=" + kind, "INSTALL_K3S_SKIP_START=true", "INSTALL_K3S_SKIP_ENABLE=true"}
		},
		cleanServer: places("k3s-uninstall.sh"), cleanAgent: places("k3s-agent-uninstall.sh"), dataDirVariable: "K3S_DATA_DIR",
		kubectl: "k3s kubectl", config: "/etc/rancher/k3s/k3s.yaml", begins: "cluster-init",
	}
	rke2 = alwaysEncrypted{rancher{
		name: "rke2", script: "https://get.rke2.io", joinPort: 9345, server: "rke2-server", agent: "rke2-agent",
		installs:    func(kind string) []string { return []string{"INSTALL_RKE2_TYPE=" + kind} },
		cleanServer: places("rke2-uninstall.sh"), cleanAgent: places("rke2-uninstall.sh"), dataDirVariable: "RKE2_DATA_DIR",
		kubectl: `"$DATA/bin/kubectl" --kubeconfig /etc/rancher/rke2/rke2.yaml`, config: "/etc/rancher/rke2/rke2.yaml", folders: []string{"/var/lib/rancher/rke2/bin"},
		stopPods: places("rke2-killall.sh"),
	}}
)

// places returns the paths where an installer may have put a script. RKE2's packages use /usr. Both distributions use
// /opt if /usr is read-only.
func places(name string) []string {
	return []string{"/usr/local/bin/" + name, "/opt/bin/" + name, "/opt/rke2/bin/" + name, "/usr/bin/" + name}
}

func (r rancher) folder() string { return "/etc/rancher/" + r.name }

func (r rancher) dataDir(in *Input) string {
	return cmp.Or(in.Spec.DataDir, "/var/lib/rancher/"+r.name)
}

func (r rancher) s3CA() string { return r.folder() + "/etcd-s3-ca.crt" }

func (r rancher) files(in *Input, host *member, join string) ([]protocol.HostFile, error) {
	config, err := r.render(in, host, join)
	if err != nil {
		return nil, fmt.Errorf("write config.yaml: %w", err)
	}
	files := []protocol.HostFile{{Path: r.folder() + "/config.yaml", Content: config, Mode: "0600"}}
	if len(in.Registries) > 0 {
		files = append(files, protocol.HostFile{Path: r.folder() + "/registries.yaml", Content: in.Registries, Mode: "0600"})
	}
	if len(in.S3.CA) > 0 && host.is(provisionv1.RoleEtcd) {
		files = append(files, protocol.HostFile{Path: r.s3CA(), Content: in.S3.CA, Mode: "0600"})
	}
	return files, nil
}

func (r rancher) manifest(in *Input) string {
	return r.dataDir(in) + "/server/manifests/drover-agent.yaml"
}

func (r rancher) service(host *member) string {
	if host.server() {
		return r.server
	}
	return r.agent
}

func (r rancher) joinURL(address string) string {
	if strings.Contains(address, ":") { // IPv6
		address = "[" + address + "]"
	}
	return fmt.Sprintf("https://%s:%d", address, r.joinPort)
}

// probes returns probes that send requests to the loopback interface of the host.
func (r rancher) probes(in *Input, host *member) []protocol.HostProbe {
	tls := path.Join(r.dataDir(in), "server/tls")
	var probes []protocol.HostProbe
	if len(host.startOptions()) == 0 {
		probes = append(probes, protocol.HostProbe{Name: "kubelet", URL: "http://127.0.0.1:10248/healthz"})
	}
	if host.is(provisionv1.RoleEtcd) {
		probes = append(probes, protocol.HostProbe{Name: "etcd", URL: "http://127.0.0.1:2381/health"})
	}
	if host.is(provisionv1.RoleControlPlane) {
		probes = append(probes, protocol.HostProbe{
			Name: "kube-apiserver", URL: "https://127.0.0.1:6443/readyz",
			CAFile: tls + "/server-ca.crt", CertFile: tls + "/client-kube-apiserver.crt", KeyFile: tls + "/client-kube-apiserver.key",
		})
	}
	return probes
}

// paths lists the usual directories for binaries, and the directories that the distributions' installers use.
const paths = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin:/opt/rke2/bin"

// run returns a command that runs a script with arguments. Values are not passed as environment variables of the
// instruction, because a host treats these as secrets and redacts them in its reports.
func (r rancher) run(in *Input, words ...string) []string { return r.runWith(in, nil, words...) }

// runWith is like run, but also sets the given environment variables.
func (r rancher) runWith(in *Input, variables []string, words ...string) []string {
	return slices.Concat([]string{"/usr/bin/env", "PATH=" + paths, "DATA=" + r.dataDir(in)}, variables, []string{"/bin/sh", "-c"}, words)
}

func (r rancher) install(in *Input, host *member) []string {
	i, kind := in.Spec.Installer, "agent"
	if host.server() {
		kind = "server"
	}
	command := append([]string{"/usr/bin/env", "INSTALL_" + strings.ToUpper(r.name) + "_VERSION=" + in.Spec.Version}, r.installs(kind)...)
	if i.Path != "" {
		return append(command, "/bin/sh", "-c", run, i.Path)
	}
	return append(command, "/bin/sh", "-c", fetch, cmp.Or(i.URL, r.script), i.SHA256)
}

func (r rancher) check(in *Input) []string {
	return r.run(in, checkInstalled(), r.name, in.Spec.Version, r.folder())
}

func (r rancher) start(in *Input, host *member) []string {
	return r.run(in, append([]string{start, r.service(host)}, host.startOptions()...)...)
}

func (r rancher) stop(in *Input) []string {
	return r.runWith(in, []string{r.dataDirVariable + "=" + r.dataDir(in)}, append([]string{stop, r.server}, r.stopPods...)...)
}

func (r rancher) rotateCertificates(in *Input, host *member) []string {
	return r.run(in, rotate, r.service(host), r.name)
}

func (r rancher) rotateKeys(in *Input) []string { return r.run(in, rotateKeys(r), r.name) }

func (r rancher) snapshot(in *Input, name string) []string {
	return r.run(in, snapshot, r.name, strconv.Itoa(1+count(in.Spec.Etcd.S3 != nil)), name)
}

// file returns the environment variables that identify the snapshot file.
func file(of *Restoring) []string {
	variables := []string{"FILE=" + of.File}
	if of.Begins {
		variables = append(variables, "BEGINS=true")
	}
	return variables
}

func (r rancher) find(in *Input, of *Restoring) []string {
	return r.runWith(in, file(of), findSnapshot)
}

func (r rancher) restore(in *Input, of *Restoring) []string {
	script := replaceFromStore
	if of.Host != "" {
		script = replaceFromDisk
	}
	return r.runWith(in, file(of), script, r.name)
}

func (r rancher) keep(in *Input) []string { return r.run(in, keep) }

func (r rancher) resume(in *Input) []string { return r.run(in, resume) }

func (r rancher) rejoin(in *Input, epoch string) []string { return r.run(in, rejoin, epoch) }

func (r rancher) removeNode(in *Input, node string) []string {
	return r.run(in, removeScript(r), node)
}

func (r rancher) forget(in *Input, node string) []string { return r.run(in, dropPassword(r), node) }

func (r rancher) keepNodes(in *Input, nodes []string) []string {
	return r.runWith(in, []string{"NODES=" + strings.Join(nodes, " ")}, cleanNodesScript(r))
}

func (r rancher) leave(in *Input, node string) []string { return r.run(in, leaveScript(r), node) }

func (r rancher) clean(in *Input, host *member) protocol.HostInstruction {
	uninstall := r.cleanAgent
	if host.server() {
		uninstall = r.cleanServer
	}
	return protocol.HostInstruction{
		Command: append([]string{"/bin/sh", "-c", clean, "clean"}, uninstall...),
		Env:     map[string]string{r.dataDirVariable: r.dataDir(in)},
	}
}

// remove returns a command that removes both distributions. Uninstalling one distribution does not remove the files of
// the other distribution.
func (rancher) remove() []string {
	var all []string
	for _, name := range []string{"rke2-uninstall.sh", "k3s-uninstall.sh", "k3s-agent-uninstall.sh"} {
		all = append(all, places(name)...)
	}
	return append([]string{"/bin/sh", "-c", clean, "clean"}, all...)
}

func (r rancher) kubeconfig() string { return r.config }

func (r rancher) programs() []string { return r.folders }

func (r rancher) checkKeys(spec Spec) error {
	if spec.Config["secrets-encryption"] == true || spec.ServerConfig["secrets-encryption"] == true {
		return nil
	}
	return fmt.Errorf("spec.encryptionKeyRotation: %s encrypts Secrets only with serverConfig.secrets-encryption: true, which must be set when the cluster is created", r.name)
}

// optionNoSnapshots is the option that makes a distribution ignore any snapshot schedule.
const optionNoSnapshots = "etcd-disable-snapshots"

func (rancher) checkSnapshots(spec Spec) error {
	for field, config := range map[string]map[string]any{"config": spec.Config, "serverConfig": spec.ServerConfig} {
		for key, value := range config {
			if optionName(key) == optionNoSnapshots && fmt.Sprint(value) != "false" {
				return fmt.Errorf("no snapshots of etcd would be made: spec.%s has %s beside spec.etcd.schedule: "+
					"leave one of them out", field, optionNoSnapshots)
			}
		}
	}
	return nil
}
