// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
)

// uploads gives a machine a task that copies a snapshot to a bucket, or another task that uses a bucket.
func (w *world) uploads(name types.NamespacedName, id, secret string, action ...infrav1.TaskAction) {
	w.t.Helper()
	m := &infrav1.DroverMachine{}
	if err := w.Client.Get(w.t.Context(), name, m); err != nil {
		w.t.Fatal(err)
	}
	m.Spec.Tasks = []infrav1.MachineTask{{ID: id, Action: append(action, infrav1.TaskEtcdUpload)[0], Etcd: &infrav1.EtcdTask{Of: "a", File: "a.db", S3: &infrav1.EtcdTaskS3{
		EtcdS3Object: provisionv1.EtcdS3Object{Endpoint: "s3.example.com", Bucket: "b", Key: "web/a.db"}, CredentialsSecretName: secret}}}}
	if err := w.Client.Update(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

func TestHostHasBucketCredentialsOnlyWhileATaskNeedsThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.provisioned()
	secret := func(name string, labels map[string]string, data map[string]string) {
		t.Helper()
		o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels}, StringData: data}
		if err := w.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	use := map[string]string{provisionv1.LabelUse: "true"}
	secret("keys", use, map[string]string{"accessKey": "access\n", "secretKey": "hush-hush\n", "ca.crt": "CA\n", "other": "stays"})
	secret("private", nil, map[string]string{"accessKey": "access", "secretKey": "hush-hush"})
	secret("half", use, map[string]string{"accessKey": "access"})
	for id, c := range map[string]struct{ secret, want string }{
		"none":    {"none", "there is no Secret none"},
		"private": {"private", "does not have the label provision.cluster.drover.dev/use"},
		"half":    {"half", "the Secret half has no key secretKey"},
	} {
		w.uploads(name, id, c.secret)
		m := w.reconcile(name, 3)
		if s := m.Status.Tasks; len(s) != 1 || s[0].State != infrav1.TaskFailed || !strings.Contains(s[0].Message, c.want) || strings.Contains(s[0].Message, "hush") {
			t.Errorf("%s: %+v, want it to have failed with %q", id, s, c.want)
		}
	}
	w.uploads(name, "prepare", "none", infrav1.TaskEtcdPrepare) // the host may have the file
	w.reconcile(name, 3)
	given := w.instructions("h1").Instructions
	if last := given[len(given)-1]; last.ID != "task-prepare" || len(last.Env) > 0 || !strings.Contains(last.Command[len(last.Command)-1], "there is no Secret none") {
		t.Errorf("%s %q, want it to say why no copy can be fetched", last.ID, last.Command[4:])
	}
	w.uploads(name, "upload", "keys")
	w.reconcile(name, 3)
	given = w.instructions("h1").Instructions
	last := given[len(given)-1]
	want := map[string]string{"DROVER_S3_ACCESS_KEY": "access", "DROVER_S3_SECRET_KEY": "hush-hush", "DROVER_S3_CA": "CA"}
	if last.ID != "task-upload" || !maps.Equal(last.Env, want) || strings.Contains(strings.Join(last.Command, " "), "hush") {
		t.Errorf("%s with %d variables, want the credentials as variables only", last.ID, len(last.Env))
	}
	w.reports("h1", v1.HostActive, v1.ReasonActive, len(given), "")
	m := w.reconcile(name, 3)
	if s := m.Status.Tasks; len(s) != 1 || s[0].State != infrav1.TaskSucceeded {
		t.Fatalf("%+v", s)
	}
	if raw, err := json.Marshal(w.instructions("h1")); err != nil || strings.Contains(string(raw), "hush") {
		t.Errorf("the instructions still have the secret (%v)", err)
	}
	if raw, err := json.Marshal(m); err != nil || strings.Contains(string(raw), "hush") {
		t.Errorf("the machine has the secret (%v)", err)
	}
}
