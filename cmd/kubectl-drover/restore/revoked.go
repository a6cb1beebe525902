// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/protocol"
)

// revokedHelp is the help text of the command "revoked".
const revokedHelp = `Repeat the revocations of agents that a restored hub has forgotten.

A hub that was restored from a backup admits agents again that were revoked after the backup. The
revocations are in the audit log of the hub's API server, which is not part of the backup. This
command reads the audit log. It lists the Secrets CLUSTER-agent, CLUSTER-registration,
HOST-host-identity and HOST-host-join that were deleted or replaced after the last change that the
hub knows, alone or together with their Cluster, Host or workspace.

Without --yes, the command changes nothing. With --yes, it deletes the listed Secrets. The agents
are refused until the Cluster's new manifest is applied in the member, or the Host's new command is
run on the machine. The list includes join tokens that were used since the backup, because the hub
would accept them once more. The command also names the Clusters and Hosts that were deleted since.
Delete those yourself.

Run the command after the restore and before agents connect to a manager. If a manager has run since
the restore, its Lease no longer tells the time of the backup: set --backup-time.

Pass the logs of all API servers of the hub, including rotated files, from before the backup on. A
file has one event on each line and may be compressed (.gz). "-" reads standard input. The audit
policy must log requests that write Secrets, at least at the level Metadata.

Exit codes: 0 there is nothing to repeat, or all listed revocations were repeated; 1 something is
listed; 2 an error occurred, or revocations may be missing in the log.`

// NewRevoked returns the command "revoked".
func NewRevoked(o *cli.Options) *cobra.Command {
	var yes bool
	var since, backupTime, managerNamespace string
	c := &cobra.Command{
		Use:   "revoked AUDITLOG...",
		Short: "Repeat the revocations of agents that a restored hub has forgotten",
		Long:  revokedHelp,
		Example: `  kubectl drover revoked /var/log/kubernetes/audit*.log
  kubectl drover revoked /var/log/kubernetes/audit*.log --yes
  kubectl drover revoked audit.log --since 2026-03-01T02:00:00Z   # for objects that were restored without their UIDs, for example by Velero`,
		ValidArgsFunction: cli.CompleteFiles,
		RunE: func(c *cobra.Command, files []string) error {
			if len(files) == 0 {
				return errors.New("no audit log is given: name its files, or - for standard input")
			}
			anew, err := timeFlag("since", since)
			if err != nil {
				return err
			}
			made, err := timeFlag("backup-time", backupTime)
			if err != nil {
				return err
			}
			log, err := readAuditLogs(c.InOrStdin(), c.ErrOrStderr(), files) // there is no deadline for reading the log
			ctx, cancel := cli.Bounded(c.Context())
			defer cancel()
			h, failed := o.Hub()
			if failed != nil {
				return errors.Join(err, failed)
			}
			return errors.Join(err, repeatRevocations(ctx, h, c.OutOrStdout(), log, repeat{managerNamespace, anew, made, time.Now(), yes}))
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "Delete the listed Secrets")
	c.Flags().StringVar(&managerNamespace, "manager-namespace", "drover-system",
		"The namespace of the manager, whose Lease tells the time of the backup")
	cli.Complete(c, "manager-namespace", o.CompleteWorkspaces)
	c.Flags().StringVar(&backupTime, "backup-time", "", "The time of the backup, to check that the log begins earlier; "+
		"only needed if a manager has run since the restore")
	c.Flags().StringVar(&since, "since", "", "The time of the backup, to compare requests with; only for objects that "+
		"the restore recreated, because the times of other objects are more precise")
	return c
}

// repeat holds the flags of "revoked".
type repeat struct {
	managerNamespace string
	since            time.Time // if zero, a request is compared with the times in the object
	made             time.Time // time of the backup; if zero, the manager's Lease is used
	now              time.Time
	act              bool
}

// timeFlag parses a flag that may be empty.
func timeFlag(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--%s is not a time such as 2026-03-01T02:00:00Z: %w", name, err)
	}
	return at, nil
}

// recently is the maximum age of a Lease renewal that counts as proof that a manager has run since the restore.
const recently = 10 * time.Minute

// backupTime returns the time of the backup, which is needed to check whether the log is complete. If a manager has run
// since the restore, backupTime does not use the Lease, because its renewal time would make any log look complete.
func (r repeat) backupTime(hub restoredObjects, known time.Time) (time.Time, error) {
	switch {
	case !r.made.IsZero():
		return r.made, nil
	case !r.since.IsZero():
		return r.since, nil
	case hub.renewed.After(r.now.Add(-recently)):
		return known, fmt.Errorf("the manager's Lease was renewed at %s, so it does not tell the time of the backup. Either a manager has run since the restore, or the backup is only minutes old. "+
			"Keep agents from connecting until revocations are repeated, and set --backup-time to the time of the backup", hub.renewed.UTC().Format(time.RFC3339))
	}
	return known, nil
}

// repeatRevocations prints the revocations that the hub has lost. If the user requests it, repeatRevocations also
// repeats them.
func repeatRevocations(ctx context.Context, h *cli.Hub, out io.Writer, log *auditLog, r repeat) error {
	hub, known, err := readRestored(ctx, h, r.managerNamespace)
	if err != nil {
		return err
	}
	backup, doubt := r.backupTime(hub, known)
	secrets, members, unclear := log.revocations(hub, r.since)
	if err := listRevocations(out, secrets, members); err != nil {
		return err
	}
	errs := []error{unclear, doubt, log.lacks(backup)}
	deleted := 0
	for _, s := range secrets {
		if !r.act {
			break
		}
		if err := deleteSecret(ctx, h, s.object); err != nil {
			errs = append(errs, fmt.Errorf("delete Secret %s/%s: %w", s.object.Namespace, s.object.Name, err))
			continue
		}
		deleted++
	}
	text := fmt.Sprintf("Deleted: %d.", deleted)
	switch {
	case len(secrets) == 0 && unclear != nil:
		text = "Nothing was changed."
	case len(secrets) == 0:
		text = "The audit log has no revocation that this hub has forgotten."
	case !r.act:
		text = fmt.Sprintf("Nothing was changed. To delete the %d Secrets above, run the command again with --yes.",
			len(secrets))
		if errors.Join(errs...) == nil {
			errs = append(errs, cli.ErrDenied)
		}
	}
	_, err = fmt.Fprintln(out, text)
	return errors.Join(append(errs, err)...)
}

// lacks returns the reason why the log might not contain all revocations since the backup, or nil if it contains them.
func (l *auditLog) lacks(backup time.Time) error {
	switch {
	case l.first.IsZero():
		return errors.New("the audit log is empty: it cannot show revocations since the backup")
	case l.writes == 0:
		return errors.New("the audit log has no request that writes a Secret: check that the audit policy logs these " +
			"requests")
	case l.first.After(backup):
		return fmt.Errorf("the audit log begins at %s, after the backup of %s: add the earlier log, which may have revocations",
			l.first.UTC().Format(time.RFC3339), backup.UTC().Format(time.RFC3339))
	}
	return nil
}

// readRestored reads the objects that identify the hub's agents. It also returns the time of the leader's last Lease
// renewal, which is the latest time that is known to be before the backup. It ignores Leases with the same name in
// other namespaces, because a user could create such a Lease to make an incomplete log look complete.
func readRestored(ctx context.Context, h *cli.Hub, managerNamespace string) (restoredObjects, time.Time, error) {
	hub := restoredObjects{members: map[types.NamespacedName]*metav1.PartialObjectMetadata{}}
	var clusters, hosts, secrets metav1.PartialObjectMetadataList
	clusters.SetGroupVersionKind(v1.GroupVersion.WithKind("ClusterList"))
	hosts.SetGroupVersionKind(v1.GroupVersion.WithKind("HostList"))
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	var leases unstructured.UnstructuredList
	leases.SetGroupVersionKind(schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "LeaseList"})
	err := h.List(ctx, &hosts)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		err = nil // older versions of the hub do not have Hosts
	}
	if err := errors.Join(err, h.List(ctx, &clusters), h.List(ctx, &secrets, client.HasLabels{v1.LabelSecretKind}),
		h.List(ctx, &leases, client.InNamespace(managerNamespace), client.MatchingFields{"metadata.name": "drover-manager"})); err != nil {
		return hub, time.Time{}, fmt.Errorf("list Clusters, Hosts, their Secrets, and the manager's Lease: %w", err)
	}
	for i := range clusters.Items {
		hub.members[client.ObjectKeyFromObject(&clusters.Items[i])] = &clusters.Items[i]
	}
	for i := range hosts.Items {
		host := &hosts.Items[i]
		hub.members[types.NamespacedName{Namespace: host.Namespace, Name: protocol.HostMember(host.Name)}] = host
	}
	hub.secrets = secrets.Items
	backup := time.Time{}
	for _, lease := range leases.Items {
		text, _, _ := unstructured.NestedString(lease.Object, "spec", "renewTime")
		if renewed, err := time.Parse(time.RFC3339, text); err == nil && renewed.After(backup) {
			backup = renewed
		}
	}
	if hub.renewed = backup; backup.IsZero() { // no Lease exists, because leader election was disabled
		for _, o := range slices.Concat(clusters.Items, hosts.Items, secrets.Items) {
			if changed := lastChange(&o); changed.After(backup) {
				backup = changed
			}
		}
	}
	return hub, backup, nil
}

// deleteSecret deletes a Secret unless it has changed since it was listed.
func deleteSecret(ctx context.Context, h *cli.Hub, o *metav1.PartialObjectMetadata) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	err := h.Delete(ctx, secret, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// listRevocations prints the revocations that the hub has lost.
func listRevocations(out io.Writer, secrets, members []revocation) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if len(secrets) > 0 {
		fmt.Fprintln(table, "WORKSPACE\tCLUSTER\tSECRET\tREVOKED\tBY")
	}
	for _, s := range secrets {
		name := s.member.Name
		if host, isHost := protocol.HostOf(name); isHost {
			name = hostArgument + host
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", s.object.Namespace, name, s.object.Name,
			s.request.done.UTC().Format(time.RFC3339), by(s.request))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the list: %w", err)
	}
	for _, m := range members {
		kind := "Cluster"
		if _, isHost := protocol.HostOf(m.member.Name); isHost {
			kind = "Host"
		}
		fmt.Fprintf(out, "%s %s/%s was deleted at %s by %s and is restored: delete it again\n", kind, m.object.Namespace, m.object.Name,
			m.request.done.UTC().Format(time.RFC3339), cli.Visible(m.request.user))
	}
	return nil
}

// by describes a request and names the user who sent it.
func by(r auditRequest) string { return cli.Visible(r.verb) + " by " + cli.Visible(r.user) }
