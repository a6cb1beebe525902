// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Times that the parts of an installation may take, in seconds. A server that starts pulls images.
const (
	installTimeout = 1800
	startTimeout   = 1800
	cleanTimeout   = 1800
	removeTimeout  = 900
)

// flavor is what differs between the distributions, by their documentation: docs.k3s.io and docs.rke2.io.
type flavor struct {
	// name of folders and programs.
	name string
	// script is the distribution's own installer.
	script string
	// joinPort is where servers let other hosts join.
	joinPort int
	// server and agent are the systemd units.
	server, agent string
	// cleanServer and cleanAgent are the scripts that remove it.
	cleanServer, cleanAgent []string
	// dataDir is the variable by which these scripts know where the data is.
	dataDir string
	// kubectl is how a server runs it.
	kubectl string
	// stopPods are the scripts of which the first that is there ends what goes on without the service of a server: etcd and the API server, where they are pods.
	stopPods []string
}

func flavorOf(d provisionv1.Distribution) flavor {
	if d == provisionv1.DistributionRKE2 {
		uninstall := places("rke2-uninstall.sh")
		return flavor{
			name: "rke2", script: "https://get.rke2.io", joinPort: 9345, server: "rke2-server", agent: "rke2-agent",
			cleanServer: uninstall, cleanAgent: uninstall, dataDir: "RKE2_DATA_DIR", kubectl: `"$DATA/bin/kubectl" --kubeconfig /etc/rancher/rke2/rke2.yaml`,
			stopPods: places("rke2-killall.sh"),
		}
	}
	return flavor{
		name: "k3s", script: "https://get.k3s.io", joinPort: 6443, server: "k3s", agent: "k3s-agent",
		cleanServer: places("k3s-uninstall.sh"), cleanAgent: places("k3s-agent-uninstall.sh"), dataDir: "K3S_DATA_DIR", kubectl: "k3s kubectl",
	}
}

// config returns the config.yaml of a host.
func (in *Input) config(host *member, join string) ([]byte, error) {
	config := map[string]any{}
	maps.Copy(config, in.Spec.Config)
	labels, taints := slices.Clone(host.NodeLabels), slices.Clone(host.NodeTaints)
	if !host.server() {
		config["token"] = in.Stored.AgentToken
	} else {
		maps.Copy(config, in.Spec.ServerConfig)
		config["token"], config["agent-token"] = in.Stored.Token, in.Stored.AgentToken
		if host.is(provisionv1.RoleEtcd) {
			in.etcdConfig(config)
		}
		taints = append(taints, host.taints()...)
		for option, on := range map[string]bool{
			"disable-etcd": !host.is(provisionv1.RoleEtcd), "disable-apiserver": !host.is(provisionv1.RoleControlPlane),
			"disable-controller-manager": !host.is(provisionv1.RoleControlPlane), "disable-scheduler": !host.is(provisionv1.RoleControlPlane),
		} {
			if on {
				config[option] = true
			}
		}
	}
	config["node-name"] = host.Name
	if len(host.NodeIPs) > 0 {
		config["node-ip"] = in.nodeIP(host)
	}
	if in.Spec.DataDir != "" {
		config["data-dir"] = in.Spec.DataDir
	}
	switch {
	case join != "":
		config["server"] = join
	case in.Spec.Distribution == provisionv1.DistributionK3s: // RKE2 always has etcd
		config["cluster-init"] = true
	}
	for key, more := range map[string][]string{"node-label": labels, "node-taint": taints} {
		if all := append(texts(config[key]), more...); len(all) > 0 {
			config[key] = all
		}
	}
	return yaml.Marshal(config)
}

// etcdConfig adds the options of snapshots.
func (in *Input) etcdConfig(config map[string]any) {
	set := func(option string, value string) {
		if value != "" {
			config[option] = value
		}
	}
	e := in.Spec.Etcd
	set("etcd-snapshot-schedule-cron", strings.TrimSpace(e.Schedule)) // the distributions do not read "@daily "
	if e.Retention > 0 {
		config["etcd-snapshot-retention"] = e.Retention
	}
	if e.S3 == nil {
		return
	}
	config["etcd-s3"] = true
	if _, own := config["etcd-s3-retention"]; e.Retention > 0 && !own && hasS3Retention(in.Spec.Version) {
		config["etcd-s3-retention"] = e.Retention
	}
	set("etcd-s3-endpoint", e.S3.Endpoint)
	set("etcd-s3-bucket", e.S3.Bucket)
	set("etcd-s3-region", e.S3.Region)
	set("etcd-s3-bucket-lookup-type", strings.ToLower(string(e.S3.BucketLookup)))
	set("etcd-s3-folder", e.S3.Folder)
	set("etcd-s3-access-key", in.S3.AccessKey)
	set("etcd-s3-secret-key", in.S3.SecretKey)
	if len(in.S3.CA) > 0 {
		config["etcd-s3-endpoint-ca"] = in.s3CA()
	}
}

// s3CA is the file with the CA of the store.
func (in *Input) s3CA() string { return "/etc/rancher/" + in.flavor().name + "/etcd-s3-ca.crt" }

// texts returns what an option of the user has, which may be one text or a list.
func texts(value any) (all []string) {
	switch v := value.(type) {
	case string:
		return []string{v}
	case []any:
		for _, text := range v {
			all = append(all, fmt.Sprint(text))
		}
	}
	return all
}

// Scripts of the instructions. Their words come as arguments and variables, and never as text of the script.
const (
	// try runs "attempt" up to five times: an instruction that has failed is not repeated, and what an installer fetches may fail for a moment.
	try = `for i in 1 2 3 4 5; do attempt && exit; code=$?; echo "attempt $i of 5 has failed: exit code $code" >&2; sleep 10; done; exit $code`
	// fetch runs the installer that a URL leads to.
	fetch = `file=$(mktemp) && trap 'rm -f "$file"' EXIT || exit
url=$0 sum=$1
attempt() {
	curl -fsSL --proto =https --retry 3 -o "$file" "$url" || return
	test -z "$sum" || echo "$sum  $file" | sha256sum -c - || return
	sh "$file"
}
` + try
	// run runs the installer that is on the machine.
	run = `script=$0; attempt() { sh "$script"; }; ` + try
	// start starts a unit, or starts it again. It returns when the distribution says that it is up. systemd starts one again that has failed, so a first failure is
	// not the last word. One that is not waited for is stopped before, so that no probe finds the former one.
	start = `systemctl daemon-reload && systemctl enable "$0" || exit
test -z "$1" || systemctl stop "$0"
systemctl restart $1 "$0" && exit; code=$?
for i in $(seq 60); do sleep 5; systemctl is-active --quiet "$0" && exit; done
journalctl -u "$0" -n 15 --no-pager >&2; exit $code`
	// rotate renews certificates. A host that was never started has none.
	rotate = `test ! -d "$DATA/server/tls" || { systemctl stop "$0"; "$1" certificate rotate --data-dir "$DATA" || { code=$?; systemctl start "$0"; exit $code; }; }`
)

// Plan is what a host is to do, and what is remembered with it.
type Plan struct {
	protocol.HostPlan
	Held
}

// Held is what is remembered with a host's plan.
type Held struct {
	// Unreadable reports that the host has a plan, and that nothing can be read of what was remembered with it. Nothing is done to such a host.
	Unreadable bool `json:"-"`
	// Roles of the host, sorted, with commas between.
	Roles string `json:"roles"`
	// Join is the URL by which the host has joined, empty for the one that began the cluster.
	Join string `json:"join,omitempty"`
	// Version that the plan installs.
	Version string `json:"version"`
	// Install identifies what is installed, and Start all that the host is started again for.
	Install string `json:"install"`
	Start   string `json:"start"`
	// Installs and Starts are numbers of these: what was there before, and is to be again, is another instruction.
	Installs int64 `json:"installs"`
	Starts   int64 `json:"starts"`
	// Changed reports that the host was part of the cluster before it was given this plan.
	Changed bool `json:"changed,omitempty"`
	// Task is the ID of the task that the plan has, empty for none.
	Task string `json:"task,omitempty"`
	// Removes are the IDs of the instructions that remove nodes.
	Removes []string `json:"removes,omitempty"`
	Part
}

// plan returns what a host is to do.
func (in *Input) plan(host *member, join string, removes []removal) (*Plan, error) {
	config, err := in.config(host, join)
	if err != nil {
		return nil, fmt.Errorf("write config.yaml: %w", err)
	}
	f := in.flavor()
	folder := "/etc/rancher/" + f.name
	p := &Plan{Held: Held{Roles: host.roles(), Join: join, Version: in.Spec.Version}}
	p.Files = []protocol.HostFile{{Path: folder + "/config.yaml", Content: config, Mode: "0600"}}
	if len(in.Registries) > 0 {
		p.Files = append(p.Files, protocol.HostFile{Path: folder + "/registries.yaml", Content: in.Registries, Mode: "0600"})
	}
	if len(in.S3.CA) > 0 && host.is(provisionv1.RoleEtcd) {
		p.Files = append(p.Files, protocol.HostFile{Path: in.s3CA(), Content: in.S3.CA, Mode: "0600"})
	}
	unit, kind, uninstall := f.agent, "agent", f.cleanAgent
	if host.server() {
		unit, kind, uninstall = f.server, "server", f.cleanServer
	}
	install := in.install(f, kind)
	p.Install = digest(install.Command)
	p.Instructions = append(p.Instructions, install, in.check(f))
	rotation := int64(0)
	if host.server() {
		rotation = in.Spec.CertificateRotation
	}
	if rotation > 0 {
		p.Instructions = append(p.Instructions, protocol.HostInstruction{
			ID: "certificates-" + strconv.FormatInt(rotation, 10), Command: in.script(rotate, unit, f.name), TimeoutSeconds: installTimeout})
	}
	takesEffect := []any{p.Files, p.Install, rotation, unit}
	if keys := max(in.Stored.Keys, in.Stored.KeysFailed); host.server() && keys > 0 { // a server reads new encryption keys when it starts
		takesEffect = append(takesEffect, keys)
	}
	if restored := in.restored(host); restored != "" {
		takesEffect = append(takesEffect, "restore", restored)
	}
	p.Start = digest(takesEffect...)
	in.number(p, host.Held)
	p.Instructions[0].ID = fmt.Sprintf("install-%s-%d", p.Install, p.Installs)
	p.Instructions[1].ID = fmt.Sprintf("check-%s-%d", digest(p.Instructions[1].Command), p.Installs)
	p.Instructions = append(p.Instructions, in.beforeStart(p, host)...)
	p.Instructions = append(p.Instructions, protocol.HostInstruction{ID: p.startID(), Command: in.script(append([]string{start, unit}, host.startOptions()...)...), TimeoutSeconds: startTimeout})
	p.Instructions = append(p.Instructions, in.afterStart(p, host)...)
	if host.is(provisionv1.RoleControlPlane) { // it takes effect without a start
		p.Files = append(p.Files, protocol.HostFile{Path: in.dataDir() + "/server/manifests/drover-agent.yaml", Content: in.Manifest, Mode: "0600", Absent: in.Manifest == nil})
	}
	for _, r := range removes {
		p.Removes = append(p.Removes, r.id())
		p.Instructions = append(p.Instructions, protocol.HostInstruction{
			ID: r.id(), Command: in.script(removeScript(f), r.Node), TimeoutSeconds: removeTimeout})
	}
	in.addTask(p, host)
	p.Probes = in.probes(host)
	p.Clean = in.clean(p, host, uninstall)
	return p, nil
}

// number numbers what a plan installs and starts: what the host has not been told last has a number that it never had.
func (in *Input) number(p *Plan, held *Held) {
	before := Held{}
	if held != nil {
		before = *held
	}
	next := max(before.Starts+1, in.Now)
	if p.Starts = before.Starts; p.Start != before.Start {
		p.Starts = next
	}
	if p.Installs = before.Installs; p.Install != before.Install {
		p.Installs = next
	}
}

func (h *Held) startID() string { return fmt.Sprintf("start-%s-%d", h.Start, h.Starts) }

// paths are where the distributions' installers put programs, beside the usual places.
const paths = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin:/opt/rke2/bin"

// script returns a command that runs a script with arguments. What it is told by variables comes as words: the variables of an instruction are secrets to the host,
// which would cut them out of what it reports.
func (in *Input) script(words ...string) []string { return in.scriptWith(nil, words...) }

// scriptWith is script with more variables, each with its value.
func (in *Input) scriptWith(variables []string, words ...string) []string {
	return slices.Concat([]string{"/usr/bin/env", "PATH=" + paths, "DATA=" + in.dataDir()}, variables, []string{"/bin/sh", "-c"}, words)
}

// check returns the instruction that checks what the installer has left on the machine. Its ID is the caller's.
func (in *Input) check(f flavor) protocol.HostInstruction {
	return protocol.HostInstruction{
		Command: in.script(checkInstalled(), f.name, in.Spec.Version, "/etc/rancher/"+f.name), TimeoutSeconds: stopTimeout}
}

// clean returns the instructions that remove the distribution. A server leaves etcd first.
func (in *Input) clean(p *Plan, host *member, uninstall []string) []protocol.HostInstruction {
	f := in.flavor()
	clean := protocol.HostInstruction{
		ID: "clean-" + p.Start, Command: append([]string{"/bin/sh", "-c", Clean, "clean"}, uninstall...),
		Env: map[string]string{f.dataDir: in.dataDir()}, TimeoutSeconds: cleanTimeout,
	}
	if !host.is(provisionv1.RoleEtcd) {
		return []protocol.HostInstruction{clean}
	}
	leave := protocol.HostInstruction{ID: "leave-" + p.Start, Command: in.script(leaveScript(f), host.Name), TimeoutSeconds: cleanTimeout}
	return []protocol.HostInstruction{leave, clean}
}

// install returns the instruction that installs the distribution, and does not start it.
func (in *Input) install(f flavor, kind string) protocol.HostInstruction {
	i, name := in.Spec.Installer, "INSTALL_"+strings.ToUpper(f.name)
	command := []string{"/usr/bin/env", name + "_VERSION=" + in.Spec.Version}
	if f.name == "rke2" {
		command = append(command, name+"_TYPE="+kind)
	} else {
		command = append(command, name+"_EXEC="+kind, name+"_SKIP_START=true", name+"_SKIP_ENABLE=true")
	}
	if i.Path != "" {
		command = append(command, "/bin/sh", "-c", run, i.Path)
	} else {
		command = append(command, "/bin/sh", "-c", fetch, cmp.Or(i.URL, f.script), i.SHA256)
	}
	return protocol.HostInstruction{Command: command, TimeoutSeconds: installTimeout}
}

// removeScript removes a node, on which the distribution removes its member of etcd, too. The API server may be away for a moment.
func removeScript(f flavor) string {
	return `for i in $(seq 60); do ` + f.kubectl + ` delete node --ignore-not-found --timeout=60s -- "$0" && exit; sleep 5; done; exit 1`
}

// probes say whether a host works: what answers on the loopback of each.
func (in *Input) probes(host *member) []protocol.HostProbe {
	tls := path.Join(in.dataDir(), "server/tls")
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

func (in *Input) flavor() flavor { return flavorOf(in.Spec.Distribution) }

func (in *Input) dataDir() string {
	return cmp.Or(in.Spec.DataDir, "/var/lib/rancher/"+in.flavor().name)
}

// joinURL is where a host joins by a server.
func (in *Input) joinURL(server *member) string {
	host := server.Address
	if strings.Contains(host, ":") { // IPv6
		host = "[" + host + "]"
	}
	return fmt.Sprintf("https://%s:%d", host, in.flavor().joinPort)
}

// digest is a short one of values that JSON can hold.
func digest(values ...any) string {
	raw, _ := json.Marshal(values) // strings, numbers and structs of these
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:10])
}
