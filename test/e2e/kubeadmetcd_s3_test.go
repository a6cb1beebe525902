// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
	"github.com/drover-dev/drover/test/s3server"
	"github.com/drover-dev/drover/test/testkit"
)

// buildHostAgent builds the program of the host agent.
func buildHostAgent(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "drover-host-agent")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", program, "../../cmd/drover-host-agent").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// bucketed carries out a task that accesses a bucket, as the host's agent does, and returns its output.
func (p *controlPlane) bucketed(task infrav1.MachineTask, program string, variables map[string]string) (string, error) {
	cmd := p.as(task)
	cmd.Env = append(cmd.Env, protocol.EnvHostAgent+"="+program)
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// fromBucket creates a snapshot of a working cluster, stores it on a real S3 server in the cluster's network, and
// restores it on a host that never had the snapshot.
func fromBucket(t *testing.T, planes []*controlPlane) {
	t.Helper()
	one, two, three := planes[0], planes[1], planes[2]
	program := buildHostAgent(t)
	s3 := s3server.Start(t, three.address+":9000", "nsenter", "--target", three.pid, "--net", "--")
	object := &kubeadm.Object{EtcdS3Object: provisionv1.EtcdS3Object{Endpoint: s3.Endpoint, Bucket: s3server.Bucket, Region: s3server.Region, Key: "web/later.db"}}
	by := map[string]string{protocol.EnvS3AccessKey: s3server.AccessKey, protocol.EnvS3SecretKey: s3server.SecretKey, protocol.EnvS3CA: string(s3.CA)}
	one.kubectl(t, "create", "configmap", "in-the-bucket")
	two.run(t, "cp", kubeadm.Folder+"broken.db", kubeadm.Folder+"mine.db")
	for range 2 { // interrupted, and repeated
		two.act(t, etcdTask(kubeadm.Snapshot, infrav1.EtcdTask{File: "later.db", Remove: []string{"first.db", "broken.db", "none.db"}}))
	}
	if left := two.run(t, "ls", kubeadm.Folder); strings.Join(strings.Fields(left), " ") != "later.db mine.db" {
		t.Errorf("the host has %q, want what it was told to remove to be gone, and nothing else", left)
	}
	upload := etcdTask(kubeadm.Upload, infrav1.EtcdTask{File: "later.db", S3: object})
	wrong := map[string]string{protocol.EnvS3AccessKey: s3server.AccessKey, protocol.EnvS3SecretKey: "hush-hush-of-another", protocol.EnvS3CA: string(s3.CA)}
	if out, err := two.bucketed(upload, program, wrong); err == nil || !strings.Contains(out, "check secretKey") || strings.Contains(out, "hush-hush") {
		t.Errorf("a wrong secret: %v, %s", err, out)
	}
	if out, err := two.bucketed(upload, "", by); err == nil || !strings.Contains(out, "restart drover-host-agent") {
		t.Errorf("an agent that knows no bucket: %v, %s", err, out)
	}
	if out, err := two.bucketed(upload, program, by); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if info, err := os.Stat(filepath.Join(s3.Folder, "web/later.db")); err != nil || info.Size() < 10000 {
		t.Fatalf("the bucket has %v, %v", info, err)
	}
	two.run(t, "rm", kubeadm.Folder+"later.db")
	one.kubectl(t, "delete", "configmap", "in-the-bucket")
	missing := *object
	missing.Key = "web/never.db"
	if out, err := one.bucketed(etcdTask(kubeadm.Prepare, infrav1.EtcdTask{Of: "r2", File: "never.db", S3: &missing}), program, by); err == nil || !strings.Contains(out, "there is no such object") {
		t.Errorf("an object that is not there: %v, %s", err, out)
	}
	if err := one.fails(etcdTask(kubeadm.Prepare, infrav1.EtcdTask{Of: "r2", File: "later.db", S3: object}), errors.New("there is no Secret")); err == nil || !strings.Contains(err.Error(), "later.db on this host, and its copy cannot be fetched: there is no Secret") {
		t.Errorf("a copy that cannot be fetched: %v", err)
	}
	if out, err := one.bucketed(etcdTask(kubeadm.Prepare, infrav1.EtcdTask{Of: "r2", File: "later.db", S3: object}), program, by); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if left := one.run(t, "sh", "-c", "find /var/lib/drover/etcd -name 'fetched*' -o -name later.db"); left != "" {
		t.Errorf("%q is left on the host", left)
	}
	for _, p := range planes {
		p.act(t, etcdTask(kubeadm.Stop, infrav1.EtcdTask{Of: "r2"}))
	}
	one.act(t, etcdTask(kubeadm.Replace, infrav1.EtcdTask{Of: "r2"}))
	for _, p := range []*controlPlane{two, three} {
		p.act(t, etcdTask(kubeadm.Join, infrav1.EtcdTask{Of: "r2", Endpoints: []string{"https://" + one.address + ":2379"}}))
	}
	for _, p := range planes {
		p.serves(t)
		p.kubectl(t, "get", "configmap", "in-the-bucket")
	}
}

// saveAway makes the schedule of the cluster create a snapshot, which is stored on a real S3 server in the network of
// the machines.
func (k *kubeadmPlanes) saveAway(t *testing.T) {
	three := k.planes[2]
	s3 := s3server.Start(k.t, three.address+":9000", "nsenter", "--target", three.pid, "--net", "--")
	create(t, k.hub.Plane, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "keys", Labels: map[string]string{provisionv1.LabelUse: "true"}},
		Data: map[string][]byte{"accessKey": []byte(s3server.AccessKey), "secretKey": []byte(s3server.SecretKey), "ca.crt": s3.CA}})
	k.follows(t, infrav1.Etcd{Schedule: "*/5 * * * *", Retention: 2, S3: &provisionv1.EtcdS3{Endpoint: s3.Endpoint, Bucket: s3server.Bucket, Folder: "web", CredentialsSecretName: "keys"}})
	list := &provisionv1.EtcdSnapshotList{}
	ended := func(ctx context.Context) (done int, err error) {
		err = k.hub.Client.List(ctx, list, client.InNamespace(teamSpace), client.MatchingLabels{provisionv1.LabelScheduled: "true"})
		for _, o := range list.Items {
			if o.Status.Phase == provisionv1.SnapshotSucceeded && o.Status.S3 != nil {
				done++
			}
		}
		return done, err
	}
	testkit.Eventually(t, 3*time.Minute, func(ctx context.Context) error {
		if done, err := ended(ctx); err != nil || done == 0 {
			return fmt.Errorf("no snapshot of the schedule is in the bucket: %+v (%w)", list.Items, err)
		}
		return nil
	})
	k.follows(t, infrav1.Etcd{S3: &provisionv1.EtcdS3{Endpoint: s3.Endpoint, Bucket: s3server.Bucket, CredentialsSecretName: "keys"}})
	testkit.Eventually(t, 2*time.Minute, func(ctx context.Context) error {
		if done, err := ended(ctx); err != nil || done < len(list.Items) {
			return fmt.Errorf("%d of %d have succeeded (%w)", done, len(list.Items), err)
		}
		return nil
	})
	one := list.Items[0]
	k.scheduled = one.Name
	t.Logf("%s is %s in the bucket %s", one.Name, one.Status.S3.Key, one.Status.S3.Bucket)
	if info, err := os.Stat(filepath.Join(s3.Folder, one.Status.S3.Key)); err != nil || one.Status.S3.Key != "web/"+one.Status.Snapshot || info.Size() < 10000 {
		t.Errorf("the bucket has %v, %v, want %+v", info, err, one.Status.S3)
	}
	k.provisioned(t)
	for _, p := range k.planes {
		state := k.machines[p.name].path("agent")
		testkit.Eventually(t, time.Minute, func(context.Context) error { // the host has the plan without the task a moment later
			if out, err := exec.CommandContext(t.Context(), "grep", "-rlF", s3server.SecretKey, state).CombinedOutput(); err == nil {
				return fmt.Errorf("%s still has the secret, in %s", p.name, out)
			}
			return nil
		})
		if p.name == one.Status.Host {
			p.run(t, "rm", kubeadm.Folder+one.Status.Snapshot)
		}
	}
}

// follows configures a schedule and a bucket for the cluster.
func (k *kubeadmPlanes) follows(t *testing.T, etcd infrav1.Etcd) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		cluster := &infrav1.DroverCluster{}
		if err := k.hub.Client.Get(ctx, k.cluster, cluster); err != nil {
			return err
		}
		cluster.Spec.Etcd = etcd
		return k.hub.Client.Update(ctx, cluster)
	})
}
