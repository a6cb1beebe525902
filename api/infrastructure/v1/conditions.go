// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Conditions of the kinds of this package. Cluster API mirrors Ready as InfrastructureReady of its Cluster or Machine.
const (
	// ConditionReady of a DroverCluster: Cluster API can reach the cluster as soon as its agent connects. Of a
	// DroverMachine: the Host has carried out the bootstrap and is connected.
	ConditionReady = "Ready"
	// ConditionTasksSucceeded of a DroverMachine is there while it has tasks. It is False while one runs or waits, and if
	// one failed.
	ConditionTasksSucceeded = "TasksSucceeded"
	// ConditionEtcdScheduled of a DroverCluster is there while it has a schedule of snapshots. It is False if that cannot
	// be read, or the manager makes none; the message says what to do.
	ConditionEtcdScheduled = "EtcdScheduled"
	// ConditionPaused is True while Cluster API asks that nothing be done.
	ConditionPaused = "Paused"
)

// Reasons of Ready.
const (
	// ReasonProvisioned: all is done.
	ReasonProvisioned = "Provisioned"
	// ReasonWaitingForOwner: Cluster API has not yet made itself the owner.
	ReasonWaitingForOwner = "WaitingForOwner"
	// ReasonPaused: Cluster API has paused the cluster or the object.
	ReasonPaused = "Paused"
	// ReasonClusterMissing: there is no Cluster of cluster.drover.dev with the name of that of Cluster API.
	ReasonClusterMissing = "ClusterMissing"
	// ReasonSecretConflict: the Secret "<cluster>-kubeconfig", or "<host>-host-plan" of a machine's Host, is there and is
	// not Drover's.
	ReasonSecretConflict = "SecretConflict"
	// ReasonWaitingForCluster: the DroverCluster is not provisioned yet.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForBootstrap: the bootstrap provider has not written its data yet.
	ReasonWaitingForBootstrap = "WaitingForBootstrap"
	// ReasonBootstrapRefused: the bootstrap data asks for what Drover does not do on Hosts. The message says what.
	ReasonBootstrapRefused = "BootstrapRefused"
	// ReasonNoHost: no Host of the workspace is available that the machine may be. The message counts why.
	ReasonNoHost = "NoHost"
	// ReasonBootstrapping: the Host carries out the bootstrap.
	ReasonBootstrapping = "Bootstrapping"
	// ReasonBootstrapFailed: the Host could not carry out the bootstrap; its status has the last lines. It is not
	// repeated: let Cluster API replace the machine.
	ReasonBootstrapFailed = "BootstrapFailed"
	// ReasonHostLost: the Host's agent is not connected.
	ReasonHostLost = "HostLost"
	// ReasonHostGone: the Host, or its plan, was deleted.
	ReasonHostGone = "HostGone"
	// ReasonReleasing: the machine is being deleted, and its Host cleaned.
	ReasonReleasing = "Releasing"
)

// Reasons of TasksSucceeded.
const (
	// ReasonTasksSucceeded: all tasks have succeeded.
	ReasonTasksSucceeded = "Succeeded"
	// ReasonTaskRunning: a task runs, or waits for the Host.
	ReasonTaskRunning = "TaskRunning"
	// ReasonTaskFailed: a task failed. The message has the last lines that it wrote. It is not repeated.
	ReasonTaskFailed = "TaskFailed"
)

// Reasons of EtcdScheduled.
const (
	// ReasonScheduled: the schedule was read. The latest EtcdSnapshot shows whether snapshots are made by it.
	ReasonScheduled = "Scheduled"
	// ReasonScheduleInvalid: the schedule cannot be read, or names no time that comes.
	ReasonScheduleInvalid = "ScheduleInvalid"
)

// Names that the manager gives.
const (
	// ProviderIDPrefix precedes "<workspace>/<host>" in a provider ID.
	ProviderIDPrefix = "drover://"
	// FinalizerHost keeps a DroverMachine until its Host was cleaned and given back.
	FinalizerHost = Group + "/host"
	// AnnotationUpdateAttempt on a DroverMachine whose update in place failed has it tried again, whenever its value is
	// changed.
	AnnotationUpdateAttempt = Group + "/update-attempt"
	// KubeconfigSecretSuffix follows the name of the Cluster in that of the Secret that Cluster API reads.
	KubeconfigSecretSuffix = "-kubeconfig"
)
