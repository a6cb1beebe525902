// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// clock returns the time that is the given minutes and seconds after the beginning of the test.
func clock(minute int, seconds ...float64) time.Time {
	at := time.Date(2026, 3, 1, 2, minute, 0, 0, time.UTC)
	for _, s := range seconds {
		at = at.Add(time.Duration(s * float64(time.Second)))
	}
	return at
}

// logged returns an audit event of a request that took 200 ms. path is "resource/namespace/name".
func logged(at time.Time, verb, path string, change ...string) string {
	parts := strings.Split(path, "/")
	group := ""
	if parts[0] == "clusters" || parts[0] == "hosts" {
		group = `"apiGroup":"cluster.drover.dev",`
	}
	event := fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a","stage":"ResponseComplete","requestURI":"/api/v1/x",`+
		`"verb":%q,"user":{"username":"alice"},"objectRef":{%s"resource":%q,"namespace":%q,"name":%q,"apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},`+
		`"requestReceivedTimestamp":%q,"stageTimestamp":%q}`, verb, group, parts[0], parts[1], parts[2], at.Format(metav1.RFC3339Micro), at.Add(200*time.Millisecond).Format(metav1.RFC3339Micro))
	return strings.NewReplacer(change...).Replace(event) + "\n"
}

// restoredMeta returns the objects of a Cluster "edge" in the backup of minute 30. The agent joined at minute 10 with
// the token of minute 5.
func restoredMeta(change func(cluster, token, agent *metav1.PartialObjectMetadata)) restoredObjects {
	object := func(name string, minute int) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, CreationTimestamp: metav1.NewTime(clock(minute))}}
	}
	cluster, token, agent := object("edge", 1), object("edge-registration", 1), object("edge-agent", 10)
	cluster.UID = "edge-uid"
	for secret, kind := range map[*metav1.PartialObjectMetadata]string{token: v1.SecretKindRegistration, agent: v1.SecretKindAgent} {
		secret.Labels = map[string]string{v1.LabelCluster: "edge", v1.LabelSecretKind: kind}
		secret.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", Name: "edge", UID: cluster.UID}}
	}
	token.Annotations = map[string]string{v1.Group + "/token-created": clock(5).Format(time.RFC3339)}
	agent.ManagedFields = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationUpdate, Time: &agent.CreationTimestamp}}
	if change != nil {
		change(cluster, token, agent)
	}
	return restoredObjects{members: map[types.NamespacedName]*metav1.PartialObjectMetadata{client.ObjectKeyFromObject(cluster): cluster},
		secrets: []metav1.PartialObjectMetadata{*token, *agent}}
}

// restoredHost returns the objects of restoredMeta as objects of a Host "rack1".
func restoredHost() restoredObjects {
	hub := restoredMeta(func(host, token, agent *metav1.PartialObjectMetadata) {
		host.Name, token.Name, agent.Name = "rack1", "rack1-host-join", "rack1-host-identity"
		token.Labels = map[string]string{v1.LabelHost: "rack1", v1.LabelSecretKind: v1.SecretKindHostJoin}
		agent.Labels = map[string]string{v1.LabelHost: "rack1", v1.LabelSecretKind: v1.SecretKindHostAgent}
	})
	for name, host := range hub.members {
		hub.members = map[types.NamespacedName]*metav1.PartialObjectMetadata{{Namespace: name.Namespace, Name: protocol.HostMember("rack1")}: host}
	}
	return hub
}

// A stolen machine would be accepted with its identity again, and would get its instructions with their secrets.
func TestRevokedAgentsOfHostsAreFound(t *testing.T) {
	t.Parallel()
	const both = "rack1-host-join rack1-host-identity"
	late := clock(40)
	tests := map[string]struct {
		log, want string
		back      bool
	}{
		"nothing happened":                         {log: logged(late, "create", "secrets/team-a/other")},
		"its agent's Secret was deleted":           {log: logged(late, "delete", "secrets/team-a/rack1-host-identity"), want: both},
		"… before the backup, as the hub knows it": {log: logged(clock(4), "delete", "secrets/team-a/rack1-host-identity")},
		"a Cluster's agent of that name":           {log: logged(late, "delete", "secrets/team-a/rack1-agent") + logged(late, "delete", "clusters/team-a/rack1")},
		"another machine joined":                   {log: logged(late, "update", "secrets/team-a/rack1-host-identity"), want: both},
		"its token was replaced":                   {log: logged(late, "delete", "secrets/team-a/rack1-host-join"), want: "rack1-host-join"},
		"its Host was deleted":                     {log: logged(late, "delete", "hosts/team-a/rack1"), want: both, back: true},
		"all Hosts were deleted":                   {log: logged(late, "deletecollection", "hosts/team-a/"), want: both, back: true},
		"its workspace was deleted":                {log: logged(late, "delete", "namespaces/team-a/team-a"), want: both},
	}
	for name, tt := range tests {
		log, err := readAuditLogs(strings.NewReader(tt.log), &bytes.Buffer{}, []string{"-"})
		if err != nil {
			t.Fatal(err)
		}
		secrets, members, err := log.revocations(restoredHost(), time.Time{})
		var got []string
		for _, s := range secrets {
			got = append(got, s.object.Name)
		}
		if err != nil || strings.Join(got, " ") != tt.want || (len(members) > 0) != tt.back {
			t.Errorf("%s: revoked are %q, and Hosts %v, %v; want %q and %t", name, got, members, err, tt.want, tt.back)
		}
		var out bytes.Buffer
		if err := listRevocations(&out, secrets, members); err != nil {
			t.Fatal(err)
		}
		if want := "Host team-a/rack1 was deleted at 2026-03-01T02:40:00Z by alice and is restored: delete it again"; tt.back != strings.Contains(out.String(), want) {
			t.Errorf("%s: %q is not as it should in:\n%s", name, want, out.String())
		}
		if len(secrets) > 0 && !strings.Contains(out.String(), "team-a      host/rack1") {
			t.Errorf("%s: the Host is not named in:\n%s", name, out.String())
		}
	}
}

func TestRevocationsAreFoundInTheAuditLog(t *testing.T) {
	t.Parallel()
	const both = "edge-registration edge-agent"
	joinedAgain := func(_, _, agent *metav1.PartialObjectMetadata) {
		at := metav1.NewTime(clock(20))
		agent.ManagedFields = append(agent.ManagedFields, metav1.ManagedFieldsEntry{Time: &at})
	}
	late := clock(40)
	tests := map[string]struct {
		log    string
		change func(cluster, token, agent *metav1.PartialObjectMetadata)
		since  time.Time
		want   string
		back   bool // the Cluster is listed as deleted
	}{
		"nothing happened":                           {log: logged(late, "create", "secrets/team-a/other")},
		"its agent's Secret was deleted":             {log: logged(late, "delete", "secrets/team-a/edge-agent"), want: both},
		"… in the second in which it was made":       {log: logged(clock(10, 0.7), "delete", "secrets/team-a/edge-agent"), want: both},
		"… of another Cluster":                       {log: logged(late, "delete", "secrets/team-a/ledge-agent") + logged(late, "delete", "secrets/team-b/edge-agent")},
		"… before the backup, as the hub knows":      {log: logged(clock(4), "delete", "secrets/team-a/edge-agent")},
		"… before it joined, by the present token":   {log: logged(clock(7), "delete", "secrets/team-a/edge-agent"), want: "edge-registration"},
		"… twice, the later one first":               {log: logged(late, "delete", "secrets/team-a/edge-agent") + logged(clock(2), "delete", "secrets/team-a/edge-agent"), want: both},
		"… in vain":                                  {log: logged(late, "delete", "secrets/team-a/edge-agent", `"code":200`, `"code":403`)},
		"… and the response has no code":             {log: logged(late, "delete", "secrets/team-a/edge-agent", `,"code":200`, ""), want: both},
		"… in a dry run":                             {log: logged(late, "delete", "secrets/team-a/edge-agent", "/api/v1/x", "/api/v1/x?dryRun=All")},
		"… which is not done yet":                    {log: logged(late, "delete", "secrets/team-a/edge-agent", "ResponseComplete", "RequestReceived")},
		"another kind of that name was deleted":      {log: logged(late, "delete", "configmaps/team-a/edge-agent")},
		"another agent joined":                       {log: logged(late, "update", "secrets/team-a/edge-agent"), want: both},
		"… by a patch":                               {log: logged(late, "patch", "secrets/team-a/edge-agent"), want: both},
		"… in place of one that was revoked":         {log: logged(late, "create", "secrets/team-a/edge-agent"), want: both},
		"the first agent joined by its token":        {log: logged(late, "create", "secrets/team-a/edge-agent"), change: noAgent, want: "edge-registration"},
		"… by the token before":                      {log: logged(clock(4), "create", "secrets/team-a/edge-agent"), change: noAgent},
		"restored anew, the first agent joined":      {log: logged(clock(40), "create", "secrets/team-a/edge-agent"), since: clock(30), change: noAgent, want: "edge-registration"},
		"… before the backup, and was revoked":       {log: logged(clock(20), "create", "secrets/team-a/edge-agent"), since: clock(30), change: noAgent},
		"… which the backup has":                     {log: logged(clock(20, 0.4), "update", "secrets/team-a/edge-agent"), change: joinedAgain},
		"its own join":                               {log: logged(clock(10, 0.4), "create", "secrets/team-a/edge-agent")},
		"its token was replaced":                     {log: logged(late, "delete", "secrets/team-a/edge-registration"), want: "edge-registration"},
		"… before the backup, as the hub knows it":   {log: logged(clock(3), "delete", "secrets/team-a/edge-registration")},
		"its token was used, or its manifest is new": {log: logged(late, "patch", "secrets/team-a/edge-registration")},
		"its Cluster was deleted":                    {log: logged(late, "delete", "clusters/team-a/edge"), want: both, back: true},
		"… and the backup has a new one":             {log: logged(clock(0, 30), "delete", "clusters/team-a/edge"), change: nil},
		"… and it is being deleted in the backup, too": {log: logged(late, "delete", "clusters/team-a/edge"), want: both, change: func(cluster, _, _ *metav1.PartialObjectMetadata) {
			cluster.DeletionTimestamp = &cluster.CreationTimestamp
		}},
		"its workspace was deleted":         {log: logged(late, "delete", "namespaces/team-a/team-a"), want: both},
		"another workspace was deleted":     {log: logged(late, "delete", "namespaces/team-b/team-b")},
		"all Secrets were deleted":          {log: logged(late, "deletecollection", "secrets/team-a/"), want: both},
		"all Secrets of another workspace":  {log: logged(late, "deletecollection", "secrets/team-b/")},
		"all Clusters were deleted":         {log: logged(late, "deletecollection", "clusters/team-a/"), want: both, back: true},
		"Secrets with its label":            {log: logged(late, "deletecollection", "secrets/team-a/", "/api/v1/x", "/x?labelSelector=cluster.drover.dev%2Fsecret%3Dagent"), want: "edge-agent"},
		"Secrets with other labels":         {log: logged(late, "deletecollection", "secrets/team-a/", "/api/v1/x", "/x?labelSelector=app%3Dweb")},
		"Secrets by their name":             {log: logged(late, "deletecollection", "secrets/team-a/", "/api/v1/x", "/x?fieldSelector=metadata.name%3Dedge-agent"), want: "edge-agent"},
		"Secrets that cannot be told":       {log: logged(late, "deletecollection", "secrets/team-a/", "/api/v1/x", "/x?labelSelector=%21%21"), want: both},
		"its Secrets lost their Cluster":    {log: logged(late, "delete", "secrets/team-a/edge-agent"), change: func(c, _, _ *metav1.PartialObjectMetadata) { c.Name = "other" }},
		"restored anew, revoked since":      {log: logged(clock(40), "delete", "secrets/team-a/edge-agent"), since: clock(30), change: anew, want: both},
		"restored anew, revoked before":     {log: logged(clock(20), "delete", "secrets/team-a/edge-agent"), since: clock(30), change: anew},
		"restored anew, another has joined": {log: logged(clock(40), "update", "secrets/team-a/edge-agent"), since: clock(30), change: anew, want: both},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, err := readAuditLogs(strings.NewReader(tt.log), &bytes.Buffer{}, []string{"-"})
			if err != nil {
				t.Fatal(err)
			}
			secrets, clusters, err := log.revocations(restoredMeta(tt.change), tt.since)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range secrets {
				got = append(got, s.object.Name)
			}
			if strings.Join(got, " ") != tt.want || (len(clusters) > 0) != tt.back {
				t.Errorf("revoked are %q, and Clusters %v; want %q and %t", got, clusters, tt.want, tt.back)
			}
		})
	}
	if _, _, err := (&auditLog{}).revocations(restoredMeta(anew), time.Time{}); err == nil || !strings.Contains(err.Error(), "--since") {
		t.Errorf("objects that were restored without their UIDs: %v", err)
	}
	log, err := readAuditLogs(strings.NewReader(logged(late, "delete", "secrets/team-a/edge-agent")), &bytes.Buffer{}, []string{"-"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"mine-agent": "", "mine-registration": "team-a/mine-registration", "mine-host-agent": ""} {
		hub := restoredMeta(nil)
		hub.members[types.NamespacedName{Namespace: "team-a", Name: "mine"}] = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "mine", UID: "mine-uid"}}
		hub.secrets = append(hub.secrets, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: map[string]string{v1.LabelCluster: "mine", v1.LabelSecretKind: v1.SecretKindRegistration}}})
		if name == "mine-agent" {
			hub.secrets[2].Labels[v1.LabelCluster] = "edge"
		}
		secrets, _, err := log.revocations(hub, time.Time{})
		if len(secrets) != 2 || (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("beside a Secret %s that a user made, %d are revoked, %v", name, len(secrets), err)
		}
	}
}

// noAgent changes the objects to a Cluster whose agent has not joined.
func noAgent(_, _, agent *metav1.PartialObjectMetadata) { agent.Name, agent.Labels = "another", nil }

// anew changes the objects as if Velero had restored them at minute 50.
func anew(cluster, token, agent *metav1.PartialObjectMetadata) {
	at := metav1.NewTime(clock(50))
	for _, o := range []*metav1.PartialObjectMetadata{cluster, token, agent} {
		o.CreationTimestamp, o.OwnerReferences, o.ManagedFields = at, nil, nil
	}
}

func TestAuditLogsAreReadWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		name = filepath.Join(dir, name)
		if strings.HasSuffix(name, ".gz") {
			var packed bytes.Buffer
			w := gzip.NewWriter(&packed)
			if _, err := w.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			content = packed.String()
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	event := logged(clock(40), "delete", "secrets/team-a/edge-agent")
	tests := map[string]struct {
		files []string
		found bool
		err   string
	}{
		"a file":                         {[]string{write("audit.log", event)}, true, ""},
		"a packed file":                  {[]string{write("audit.log.gz", event)}, true, ""},
		"the second of two":              {[]string{write("first.log", logged(clock(30), "get", "secrets/team-a/x")), write("second.log", event)}, true, ""},
		"events over several lines":      {[]string{write("pretty.log", strings.ReplaceAll(event, ",", ",\n  "))}, true, ""},
		"no file of that name":           {[]string{filepath.Join(dir, "none"), write("a.log", event)}, true, "none"},
		"an end within an event":         {[]string{write("torn.log", event+event[:100])}, true, "invalid event at byte"},
		"an event that was written over": {[]string{write("over.log", event[:100]+event)}, false, "was not read"},
		"JSON that is no event":          {[]string{write("no.log", `{"kind":"Status"}`)}, false, "not an audit event"},
		"text":                           {[]string{write("text.log", "I0301 started\n")}, false, "invalid event at byte 0"},
	}
	for name, tt := range tests {
		log, err := readAuditLogs(nil, &bytes.Buffer{}, tt.files)
		if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
		if found := len(log.deleted) == 1; found != tt.found {
			t.Errorf("%s: found is %t", name, found)
		}
	}
}

// hubWithSecrets returns a client of a hub with the objects of restoredMeta. Its manager last renewed its Lease at
// minute 30.
func hubWithSecrets(t *testing.T, funcs interceptor.Funcs) *cli.Hub {
	t.Helper()
	meta := restoredMeta(nil)
	renewed := metav1.NewMicroTime(clock(30))
	objects := []client.Object{
		&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "edge", UID: "edge-uid", CreationTimestamp: metav1.NewTime(clock(1))}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "drover-system", Name: "drover-manager"}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}},
	}
	for _, secret := range meta.secrets {
		secret.ManagedFields = nil
		objects = append(objects, &corev1.Secret{ObjectMeta: secret.ObjectMeta})
	}
	c := fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(objects...).WithInterceptorFuncs(funcs).
		WithIndex(&coordinationv1.Lease{}, "metadata.name", func(o client.Object) []string { return []string{o.GetName()} }).Build()
	return &cli.Hub{WithWatch: c, Workspace: "team-a"}
}

func secretNames(t *testing.T, h *cli.Hub) string {
	t.Helper()
	var secrets corev1.SecretList
	if err := h.List(t.Context(), &secrets); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range secrets.Items {
		names = append(names, secrets.Items[i].Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Kubernetes' role edit allows users to write Leases in a workspace. Such a Lease must not make an incomplete log look
// complete.
func TestALeaseOfAUserSaysNothingOfTheBackup(t *testing.T) {
	t.Parallel()
	h := hubWithSecrets(t, interceptor.Funcs{})
	renewed := metav1.NewMicroTime(clock(59))
	if err := h.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "drover-manager"}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}); err != nil {
		t.Fatal(err)
	}
	log, err := readAuditLogs(strings.NewReader(logged(clock(40), "create", "secrets/team-a/other")), &bytes.Buffer{}, []string{"-"})
	if err != nil {
		t.Fatal(err)
	}
	if err := repeatRevocations(t.Context(), h, &bytes.Buffer{}, log, repeat{managerNamespace: "drover-system", now: clock(59)}); err == nil || !strings.Contains(err.Error(), "after the backup of 2026-03-01T02:30:00Z") {
		t.Errorf("a log that begins ten minutes after the backup ends with %v", err)
	}
}

// The Lease of a manager that has run since the restore does not tell the time of the backup. With it, any log would
// begin before the backup.
func TestALeaseThatWasRenewedSinceTheRestoreSaysNothingOfTheBackup(t *testing.T) {
	t.Parallel()
	late := logged(clock(40), "create", "secrets/team-a/other")
	for name, tt := range map[string]struct {
		now  time.Time
		made time.Time
		err  string
	}{
		"the manager runs": {now: clock(31), err: "the manager's Lease was renewed at 2026-03-01T02:30:00Z"},
		"the manager runs, and the log begins too late":   {now: clock(31), made: clock(35), err: "after the backup of 2026-03-01T02:35:00Z"},
		"the manager runs, and the log begins before":     {now: clock(31), made: clock(45)},
		"no manager has run, and the log begins too late": {now: clock(59), err: "after the backup of 2026-03-01T02:30:00Z"},
		"no manager has run, and the log begins before":   {now: clock(59), made: clock(45)},
	} {
		h := hubWithSecrets(t, interceptor.Funcs{})
		log, err := readAuditLogs(strings.NewReader(late), &bytes.Buffer{}, []string{"-"})
		if err != nil {
			t.Fatal(err)
		}
		err = repeatRevocations(t.Context(), h, &bytes.Buffer{}, log, repeat{managerNamespace: "drover-system", now: tt.now, made: tt.made})
		if (err != nil) != (tt.err != "") || err != nil && (!strings.Contains(err.Error(), tt.err) || errors.Is(err, cli.ErrDenied)) {
			t.Errorf("%s: it ends with %v, want %q", name, err, tt.err)
		}
	}
}

func TestRevocationsAreRepeated(t *testing.T) {
	t.Parallel()
	const both = "edge-agent edge-registration"
	revoked := logged(clock(40), "delete", "secrets/team-a/edge-agent")
	early := logged(clock(20), "create", "secrets/team-a/other")
	tests := map[string]struct {
		log  string
		act  bool
		left string
		want string // in the output
		err  string
	}{
		"they are listed, and nothing is changed": {early + revoked, false, both, "delete by alice", "denied"},
		"they are repeated":                       {early + revoked, true, "", "Deleted: 2.", ""},
		"nothing was revoked":                     {early, true, both, "no revocation that this hub has forgotten", ""},
		"a log that begins too late":              {revoked, true, "", "Deleted: 2.", "begins at 2026-03-01T02:40:00Z, after the backup of 2026-03-01T02:30:00Z"},
		"a log without Secrets":                   {logged(clock(20), "get", "secrets/team-a/x"), true, both, "", "no request that writes a Secret"},
		"an empty log":                            {"", true, both, "", "is empty"},
		"a Cluster that was deleted is named":     {early + logged(clock(40), "delete", "clusters/team-a/edge"), false, both, "Cluster team-a/edge was deleted at 2026-03-01T02:40:00Z by alice and is restored", "denied"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hubWithSecrets(t, interceptor.Funcs{})
			log, err := readAuditLogs(strings.NewReader(tt.log), &bytes.Buffer{}, []string{"-"})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = repeatRevocations(t.Context(), h, &out, log, repeat{managerNamespace: "drover-system", now: clock(59), act: tt.act})
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("%q is not in:\n%s", tt.want, out.String())
			}
			if left := secretNames(t, h); left != tt.left {
				t.Errorf("left are the Secrets %q, want %q", left, tt.left)
			}
		})
	}
	t.Run("the join token goes first, so that a second try finds what is left of a first one", func(t *testing.T) {
		t.Parallel()
		refused := errors.New("refused")
		h := hubWithSecrets(t, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if o.GetName() == "edge-agent" && refused != nil {
				return refused
			}
			return c.Delete(ctx, o, options...)
		}})
		log, err := readAuditLogs(strings.NewReader(early+revoked), &bytes.Buffer{}, []string{"-"})
		if err != nil {
			t.Fatal(err)
		}
		if err := repeatRevocations(t.Context(), h, &bytes.Buffer{}, log, repeat{managerNamespace: "drover-system", now: clock(59), act: true}); !errors.Is(err, refused) || secretNames(t, h) != "edge-agent" {
			t.Errorf("the first try ends with %v and leaves %q", err, secretNames(t, h))
		}
		refused = nil
		if err := repeatRevocations(t.Context(), h, &bytes.Buffer{}, log, repeat{managerNamespace: "drover-system", now: clock(59), act: true}); err != nil || secretNames(t, h) != "" {
			t.Errorf("the second try ends with %v and leaves %q", err, secretNames(t, h))
		}
	})
	t.Run("those of a Host are repeated, too", func(t *testing.T) {
		t.Parallel()
		h := hubWithSecrets(t, interceptor.Funcs{})
		host := restoredHost()
		objects := []client.Object{&v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "rack1", UID: "edge-uid", CreationTimestamp: metav1.NewTime(clock(1))}}}
		for _, secret := range host.secrets {
			secret.ManagedFields = nil
			objects = append(objects, &corev1.Secret{ObjectMeta: secret.ObjectMeta})
		}
		for _, o := range objects {
			if err := h.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		log, err := readAuditLogs(strings.NewReader(early+logged(clock(40), "delete", "secrets/team-a/rack1-host-identity")), &bytes.Buffer{}, []string{"-"})
		if err != nil {
			t.Fatal(err)
		}
		if err := repeatRevocations(t.Context(), h, &bytes.Buffer{}, log, repeat{managerNamespace: "drover-system", now: clock(59), act: true}); err != nil || secretNames(t, h) != both {
			t.Errorf("it ends with %v and leaves %q, want %q", err, secretNames(t, h), both)
		}
	})
	t.Run("a Secret that was changed since it was listed stays", func(t *testing.T) {
		t.Parallel()
		h := hubWithSecrets(t, interceptor.Funcs{})
		hub, _, err := readRestored(t.Context(), h, "drover-system")
		if err != nil {
			t.Fatal(err)
		}
		agent := &corev1.Secret{}
		if err := h.Get(t.Context(), types.NamespacedName{Namespace: "team-a", Name: "edge-agent"}, agent); err != nil {
			t.Fatal(err)
		}
		agent.Data = map[string][]byte{"public-key": []byte("another")}
		if err := h.Update(t.Context(), agent); err != nil {
			t.Fatal(err)
		}
		for i := range hub.secrets {
			if s := &hub.secrets[i]; s.Name == "edge-agent" {
				if err := deleteSecret(t.Context(), h, s); !apierrors.IsConflict(err) {
					t.Errorf("it is deleted with %v", err)
				}
			}
		}
	})
}
