// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/robfig/cron/v3"
	"sigs.k8s.io/yaml"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/schedule"
)

func inputOf(d provisionv1.Distribution, version string, installer provisionv1.Installer) *distribution.Writer {
	in := &roster.Input{Stored: roster.Stored{Token: "server-token", AgentToken: "agent-token"}, Manifest: []byte("manifest")}
	in.Spec.ClusterInstallationSpec = provisionv1.ClusterInstallationSpec{Distribution: d, Version: version, Installer: installer}
	all := map[provisionv1.Distribution]distribution.Distribution{provisionv1.DistributionK3s: K3s, provisionv1.DistributionRKE2: RKE2}
	return &distribution.Writer{Input: in, Distribution: all[d]}
}

// rancherOf returns the distribution of a writer.
func rancherOf(in *distribution.Writer) rancher {
	if r, is := in.Distribution.(rancher); is {
		return r
	}
	return in.Distribution.(alwaysEncrypted).rancher
}

func memberOf(roles ...provisionv1.HostRole) *roster.Member {
	return &roster.Member{Host: roster.Host{Name: "m1", Address: "10.0.0.1"}, Pool: &provisionv1.HostPool{Roles: roles}}
}

func TestInstructionsMatchTheDistributionsDocumentation(t *testing.T) {
	t.Parallel()
	k3s, rke2 := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{}), inputOf(provisionv1.DistributionRKE2, "v1.35.1+rke2r1", provisionv1.Installer{Path: "/opt/install.sh"})
	etcd, control, worker := provisionv1.RoleEtcd, provisionv1.RoleControlPlane, provisionv1.RoleWorker
	for name, tt := range map[string]struct {
		in       *distribution.Writer
		host     *roster.Member
		join     string
		config   string
		commands []string
		env      string
		probes   []string
		clean    string
	}{
		"the first server of k3s": {k3s, memberOf(etcd, control, worker), "", `{"agent-token":"agent-token","cluster-init":true,"node-name":"m1","token":"server-token"}`,
			[]string{"https://get.k3s.io", "systemctl restart"}, "INSTALL_K3S_VERSION=v1.35.1+k3s1 INSTALL_K3S_EXEC=server INSTALL_K3S_SKIP_START=true INSTALL_K3S_SKIP_ENABLE=true",
			[]string{"kubelet", "etcd", "kube-apiserver"}, "/usr/local/bin/k3s-uninstall.sh"},
		"a server of k3s with etcd alone": {k3s, memberOf(etcd), "https://10.0.0.2:6443",
			`{"agent-token":"agent-token","disable-apiserver":true,"disable-controller-manager":true,"disable-scheduler":true,"node-name":"m1","node-taint":["node-role.kubernetes.io/etcd:NoExecute"],"server":"https://10.0.0.2:6443","token":"server-token"}`,
			[]string{"https://get.k3s.io", "--no-block"}, "", []string{"etcd"}, "/usr/local/bin/k3s-uninstall.sh"},
		"a server of k3s without etcd": {k3s, memberOf(control), "https://10.0.0.2:6443",
			`{"agent-token":"agent-token","disable-etcd":true,"node-name":"m1","node-taint":["node-role.kubernetes.io/control-plane:NoSchedule"],"server":"https://10.0.0.2:6443","token":"server-token"}`,
			nil, "", []string{"kubelet", "kube-apiserver"}, "/usr/local/bin/k3s-uninstall.sh"},
		"a worker of k3s": {k3s, memberOf(worker), "https://10.0.0.2:6443", `{"node-name":"m1","server":"https://10.0.0.2:6443","token":"agent-token"}`,
			nil, "INSTALL_K3S_VERSION=v1.35.1+k3s1 INSTALL_K3S_EXEC=agent INSTALL_K3S_SKIP_START=true INSTALL_K3S_SKIP_ENABLE=true", []string{"kubelet"}, "/usr/local/bin/k3s-agent-uninstall.sh"},
		"the first server of RKE2": {rke2, memberOf(etcd, control, worker), "", `{"agent-token":"agent-token","node-name":"m1","token":"server-token"}`,
			[]string{"exit $code /opt/install.sh", "systemctl restart"}, "INSTALL_RKE2_VERSION=v1.35.1+rke2r1 INSTALL_RKE2_TYPE=server", []string{"kubelet", "etcd", "kube-apiserver"}, "/usr/local/bin/rke2-uninstall.sh"},
		"a worker of RKE2": {rke2, memberOf(worker), "https://10.0.0.2:9345", `{"node-name":"m1","server":"https://10.0.0.2:9345","token":"agent-token"}`,
			nil, "INSTALL_RKE2_VERSION=v1.35.1+rke2r1 INSTALL_RKE2_TYPE=agent", []string{"kubelet"}, "/usr/local/bin/rke2-uninstall.sh"},
	} {
		told, err := tt.in.Render(tt.host, tt.join, distribution.Duties{})
		if err != nil {
			t.Fatal(err)
		}
		config, err := yaml.YAMLToJSON(told.Files[0].Content)
		if err != nil || string(config) != tt.config {
			t.Errorf("%s: %v\n%s, want\n%s", name, err, config, tt.config)
		}
		if told.Files[0].Mode != "0600" || !strings.HasSuffix(told.Files[0].Path, "/config.yaml") {
			t.Errorf("%s: %+v", name, told.Files[0].Path)
		}
		for i, words := range tt.commands { // the check is between them
			if got := strings.Join(told.Instructions[2*i].Command, " "); !strings.Contains(got, words) {
				t.Errorf("%s: %q is not in %q", name, words, got)
			}
		}
		last := told.Clean[len(told.Clean)-1].Command
		if leaves := len(told.Clean) == 2; leaves != tt.host.Is(etcd) {
			t.Errorf("%s: it leaves etcd before it is cleaned: %t, want %t", name, leaves, tt.host.Is(etcd))
		}
		if got := strings.Join(told.Instructions[0].Command, " "); !strings.HasPrefix(got, strings.TrimSpace("/usr/bin/env "+tt.env)) || len(told.Instructions[0].Env) > 0 {
			t.Errorf("%s: the command is %s, want %s before it, and no variables, which are secrets to a host", name, got, tt.env)
		}
		var probes []string
		for _, probe := range told.Probes {
			probes = append(probes, probe.Name)
		}
		if !slices.Equal(probes, tt.probes) || !slices.Contains(last, tt.clean) {
			t.Errorf("%s: probes %v, clean %v", name, probes, last)
		}
		if manifest := slices.ContainsFunc(told.Files, func(f protocol.HostFile) bool { return string(f.Content) == "manifest" }); manifest != tt.host.Is(control) {
			t.Errorf("%s: the agent's manifest is there: %t", name, manifest)
		}
		raw, err := json.Marshal(told.HostInstructions)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := protocol.ParseHostInstructions(raw); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, instruction := range slices.Concat(told.Instructions, told.Clean) {
			if text := strings.Join(instruction.Command, " "); strings.Contains(text, "-token") {
				t.Errorf("%s: a token is in a command: %s", name, text)
			}
		}
	}
}

func TestServersWithEtcdGetTheOptionsOfSnapshots(t *testing.T) {
	t.Parallel()
	in := inputOf(provisionv1.DistributionRKE2, "v1.35.1+rke2r1", provisionv1.Installer{})
	in.Spec.Etcd = provisionv1.Etcd{Schedule: "0 */6 * * *", Retention: 7, S3: &provisionv1.EtcdS3{Endpoint: "s3.example.com:9000", Bucket: "b", Region: "r", Folder: "f/g"}}
	in.S3 = roster.S3Credentials{AccessKey: "access", SecretKey: "secret", CA: []byte("ca")}
	for name, tt := range map[string]struct {
		host *roster.Member
		want bool
	}{
		"with etcd":            {memberOf(provisionv1.RoleEtcd), true},
		"with a control plane": {memberOf(provisionv1.RoleControlPlane), false},
		"worker":               {memberOf(provisionv1.RoleWorker), false},
	} {
		told, err := in.Render(tt.host, "https://10.0.0.2:9345", distribution.Duties{})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := yaml.Unmarshal(told.Files[0].Content, &got); err != nil {
			t.Fatal(err)
		}
		for option, value := range map[string]any{
			"etcd-snapshot-schedule-cron": "0 */6 * * *", "etcd-snapshot-retention": float64(7), "etcd-s3": true, "etcd-s3-endpoint": "s3.example.com:9000", "etcd-s3-bucket": "b",
			"etcd-s3-region": "r", "etcd-s3-folder": "f/g", "etcd-s3-access-key": "access", "etcd-s3-secret-key": "secret", "etcd-s3-endpoint-ca": "/etc/rancher/rke2/etcd-s3-ca.crt",
		} {
			if has := got[option] == value; has != tt.want {
				t.Errorf("%s: %s is %v", name, option, got[option])
			}
		}
		if ca := slices.ContainsFunc(told.Files, func(f protocol.HostFile) bool { return string(f.Content) == "ca" }); ca != tt.want {
			t.Errorf("%s: the store's CA is there: %t", name, ca)
		}
	}
}

// robfig/cron, which k3s and RKE2 use to read schedules, accepts no spaces around a word. They would make no snapshots,
// and report that only in their logs.
func TestAScheduleHasNoBlanksAroundIt(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{"@daily ": "@daily", " @hourly": "@hourly", " 0 */6 * * * ": "0 */6 * * *"} {
		if _, err := schedule.Parse(written); err != nil {
			t.Errorf("%q: %v, want a schedule that is taken", written, err)
		}
		in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
		in.Spec.Etcd.Schedule = written
		raw, err := rancherOf(in).render(in.Input, memberOf(provisionv1.RoleEtcd), "https://10.0.0.2:6443")
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := yaml.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		given := fmt.Sprint(got["etcd-snapshot-schedule-cron"])
		if _, err := cron.ParseStandard(given); err != nil || given != want {
			t.Errorf("the schedule %q is given as %q (%v), want %q", written, given, err, want)
		}
	}
}

func TestChangesThatRestartAHost(t *testing.T) {
	t.Parallel()
	base := func() (*distribution.Writer, *roster.Member) {
		return inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{}), memberOf(provisionv1.RoleEtcd, provisionv1.RoleControlPlane)
	}
	in, host := base()
	before, err := in.Render(host, "https://10.0.0.2:6443", distribution.Duties{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*distribution.Writer, *roster.Member)
		again  bool
	}{
		"another version":            {func(in *distribution.Writer, _ *roster.Member) { in.Spec.Version = "v1.36.0+k3s1" }, true},
		"another option":             {func(in *distribution.Writer, _ *roster.Member) { in.Spec.Config = map[string]any{"debug": true} }, true},
		"an option of servers":       {func(in *distribution.Writer, _ *roster.Member) { in.Spec.ServerConfig = map[string]any{"tls-san": "a"} }, true},
		"registries":                 {func(in *distribution.Writer, _ *roster.Member) { in.Registries = []byte("{}") }, true},
		"a rotation of certificates": {func(in *distribution.Writer, _ *roster.Member) { in.Spec.CertificateRotation = 1 }, true},
		"another installer":          {func(in *distribution.Writer, _ *roster.Member) { in.Spec.Installer.Path = "/install.sh" }, true},
		"another role": {func(_ *distribution.Writer, m *roster.Member) {
			m.Pool.Roles = []provisionv1.HostRole{provisionv1.RoleEtcd}
		}, true},
		"an agent that has joined":   {func(in *distribution.Writer, _ *roster.Member) { in.Manifest = nil }, false},
		"another address of its own": {func(_ *distribution.Writer, m *roster.Member) { m.Address = "10.0.0.9" }, false},
	} {
		in, host := base()
		tt.change(in, host)
		after, err := in.Render(host, "https://10.0.0.2:6443", distribution.Duties{})
		if err != nil || (after.Start != before.Start) != tt.again {
			t.Errorf("%s: started again %t, want %t (%v)", name, after.Start != before.Start, tt.again, err)
		}
	}
	after, err := in.Render(host, "https://10.0.0.2:6443", distribution.Duties{Removes: []distribution.Removal{{Node: "gone", Join: 2}}})
	if err != nil || after.Start != before.Start || !slices.Contains(after.Instructions[len(after.Instructions)-1].Command, "gone") {
		t.Errorf("to remove a node: %v, %+v", err, after)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"disable":["traefik"],"node-label":"a=b"}`))
	f.Add([]byte(`{"token":"x"}`))
	f.Add([]byte(`{"node-taint+":[1,null,{"a":[]}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := K3s.CheckConfig("spec.config", raw)
		if err != nil {
			return
		}
		in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
		in.Spec.Config = config
		told, err := in.Render(memberOf(provisionv1.RoleWorker), "https://10.0.0.2:6443", distribution.Duties{})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := yaml.Unmarshal(told.Files[0].Content, &got); err != nil || got["token"] != "agent-token" || got["server"] != "https://10.0.0.2:6443" || got["node-name"] != "m1" {
			t.Errorf("%s: %v, %v", told.Files[0].Content, got, err)
		}
	})
}
