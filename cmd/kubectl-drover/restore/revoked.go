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

// NewRevoked makes the command "revoked".
func NewRevoked(o *cli.Options) *cobra.Command {
	var yes bool
	var since, backupTime, managerNamespace string
	c := &cobra.Command{
		Use:   "revoked AUDITLOG...",
		Short: "Repeat the revocations of agents that a restored hub has forgotten",
		Long: `Repeat the revocations of agents that a restored hub has forgotten.

A hub that was restored from a backup admits agents again that were revoked after the backup. The audit log of the hub's API server is not in the backup,
and has those revocations. This command reads it and lists the Secrets CLUSTER-agent and CLUSTER-registration, HOST-host-identity and HOST-host-join that were
deleted, or replaced, later than the hub knows, alone or with their Cluster, Host or workspace. It changes nothing without --yes. With --yes it deletes them: such an
agent stays out until the Cluster's new manifest is applied in the member, or the Host's new command is run on the machine. Tokens by which an agent
has joined since, which the hub would accept once more, are listed, too. It also names the Clusters and Hosts that were deleted since, which it leaves to you.

Run it after the restore and before agents reach a manager. Where a manager has run since the restore, say when the backup was made (--backup-time): its Lease
does not any more. Give the logs of all API servers of the hub, from before the backup on, rotated ones too: files with an event
on each line, also packed (.gz), or - for standard input. The audit policy must have requests that write Secrets, at least at the level Metadata.

Exit codes: 0 nothing is to be repeated, or all that was listed is; 1 something is listed; 2 an error, or a log that may lack revocations.`,
		Example: `  kubectl drover revoked /var/log/kubernetes/audit*.log
  kubectl drover revoked /var/log/kubernetes/audit*.log --yes
  kubectl drover revoked audit.log --since 2026-03-01T02:00:00Z   # objects that were restored without their UIDs, as by Velero`,
		RunE: func(c *cobra.Command, files []string) error {
			if len(files) == 0 {
				return errors.New("it is not said where the audit log is: name its files, or - for standard input")
			}
			anew, err := timeFlag("since", since)
			if err != nil {
				return err
			}
			made, err := timeFlag("backup-time", backupTime)
			if err != nil {
				return err
			}
			log, err := readAuditLogs(c.InOrStdin(), c.ErrOrStderr(), files) // as long as it takes
			ctx, cancel := cli.Bounded(c.Context())
			defer cancel()
			h, failed := o.Hub()
			if failed != nil {
				return errors.Join(err, failed)
			}
			return errors.Join(err, repeatRevocations(ctx, h, c.OutOrStdout(), log, repeat{managerNamespace, anew, made, time.Now(), yes}))
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "Delete the Secrets that are listed")
	c.Flags().StringVar(&managerNamespace, "manager-namespace", "drover-system", "The namespace of the manager, whose Lease says when the backup was made")
	c.Flags().StringVar(&backupTime, "backup-time", "", "When the backup was made, to check that the log begins before. Only where a manager has run since the restore")
	c.Flags().StringVar(&since, "since", "", "The time of the backup. Only for objects that the restore made anew; otherwise their own times are better")
	return c
}

// repeat says which revocations to repeat.
type repeat struct {
	managerNamespace string
	since            time.Time // zero to compare requests with the times of each object
	made             time.Time // when the backup was made, zero to use the manager's Lease
	now              time.Time
	act              bool
}

// timeFlag reads a flag that may be empty.
func timeFlag(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--%s is no time such as 2026-03-01T02:00:00Z: %w", name, err)
	}
	return at, nil
}

// recently is the age up to which a renewed Lease shows that a manager has run since the restore.
const recently = 10 * time.Minute

// backupTime returns when the backup was made, for the check of the log. By the Lease of a manager that has run since
// the restore, any log would look complete.
func (r repeat) backupTime(hub restoredObjects, known time.Time) (time.Time, error) {
	switch {
	case !r.made.IsZero():
		return r.made, nil
	case !r.since.IsZero():
		return r.since, nil
	case hub.renewed.After(r.now.Add(-recently)):
		return known, fmt.Errorf("the manager's Lease was renewed at %s, so it does not say when the backup was made: a manager runs, or has run since the restore, unless the backup is of a moment ago. "+
			"Keep agents from it until revocations are repeated, and say with --backup-time when the backup was made", hub.renewed.UTC().Format(time.RFC3339))
	}
	return known, nil
}

// repeatRevocations prints the revocations that the hub has forgotten, and repeats them if asked to.
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
		text = "The audit log has no revocation of an agent that this hub has forgotten."
	case !r.act:
		text = fmt.Sprintf("Nothing was changed. To delete the %d Secrets above, run it again with --yes.", len(secrets))
		if errors.Join(errs...) == nil {
			errs = append(errs, cli.ErrDenied)
		}
	}
	_, err = fmt.Fprintln(out, text)
	return errors.Join(append(errs, err)...)
}

// lacks says why a log may lack revocations since a backup. It returns nil for a log that has them all.
func (l *auditLog) lacks(backup time.Time) error {
	switch {
	case l.first.IsZero():
		return errors.New("the audit log is empty: revocations since the backup are not known")
	case l.writes == 0:
		return errors.New("the audit log has no request that writes a Secret: if the audit policy leaves those out, revocations are not known")
	case l.first.After(backup):
		return fmt.Errorf("the audit log begins at %s, after the backup of %s: revocations in between are not known; add the log from before",
			l.first.UTC().Format(time.RFC3339), backup.UTC().Format(time.RFC3339))
	}
	return nil
}

// readRestored reads what says who the hub's agents are, and the latest time that is known to be before the backup:
// when the leader renewed its Lease. Leases of the same name elsewhere are of users, who would have a log that begins
// too late taken for whole.
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
		err = nil // a hub of an older release has none
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
	if hub.renewed = backup; backup.IsZero() { // there was no election
		for _, o := range slices.Concat(clusters.Items, hosts.Items, secrets.Items) {
			if changed := lastChange(&o); changed.After(backup) {
				backup = changed
			}
		}
	}
	return hub, backup, nil
}

// deleteSecret deletes a Secret that has not changed since it was listed.
func deleteSecret(ctx context.Context, h *cli.Hub, o *metav1.PartialObjectMetadata) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	err := h.Delete(ctx, secret, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// listRevocations prints the revocations that the hub has forgotten.
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", s.object.Namespace, name, s.object.Name, s.request.done.UTC().Format(time.RFC3339), by(s.request))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the list: %w", err)
	}
	for _, m := range members {
		kind := "Cluster"
		if _, isHost := protocol.HostOf(m.member.Name); isHost {
			kind = "Host"
		}
		fmt.Fprintf(out, "%s %s/%s was deleted at %s by %s, and is back: delete it again\n", kind, m.object.Namespace, m.object.Name,
			m.request.done.UTC().Format(time.RFC3339), cli.Visible(m.request.user))
	}
	return nil
}

// by says what a request did, and who made it.
func by(r auditRequest) string { return cli.Visible(r.verb) + " by " + cli.Visible(r.user) }
