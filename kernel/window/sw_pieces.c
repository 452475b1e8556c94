// SPDX-License-Identifier: GPL-2.0
/*
 * Pieces of heaps that programs have: lent by programs here to a peer, and borrowed from it.
 *
 * A lender's pages go back to its heap when its file is through with them and the peer has said
 * that nobody there writes to them any more (RETURN), or with the link. Until then an ended piece
 * is in peer->ending.
 */
#include <linux/fs.h>
#include <linux/mm.h>

#include "sw.h"

void sw_pieces_peer_init(struct sw_peer *peer)
{
	INIT_LIST_HEAD(&peer->grants);
	INIT_LIST_HEAD(&peer->ending);
}

static u64 bytes_in(const struct list_head *pieces, kuid_t uid)
{
	const struct sw_piece *piece;
	u64 bytes = 0;

	list_for_each_entry(piece, pieces, list)
		if (!piece->borrowed && uid_eq(piece->uid, uid))
			bytes += piece->bytes;
	return bytes;
}

/* Pages that a peer has not returned count, too: else they could be all that there are. */
u64 sw_pieces_bytes(struct sw_window *window, kuid_t uid)
{
	struct sw_file *file;
	u64 bytes = 0;
	u32 peer;

	list_for_each_entry(file, &window->files, list)
		bytes += bytes_in(&file->pieces, uid);
	for (peer = 0; peer < window->view.hosts; peer++)
		bytes += bytes_in(&window->peers[peer].ending, uid);
	return bytes;
}

static struct sw_piece *new_piece(struct sw_file *file, u64 at, u64 bytes)
{
	struct sw_window *window = file->window;
	struct sw_piece *piece = kzalloc(sizeof(*piece), GFP_KERNEL_ACCOUNT);

	if (!piece)
		return NULL;
	piece->at = at;
	piece->bytes = bytes;
	piece->uid = file->uid;
	/* Never used again: a mapping that is forgotten shows nobody else's piece. */
	piece->offset = window->next_offset;
	window->next_offset += bytes + SW_PAGE;
	list_add_tail(&piece->list, &file->pieces);
	file->piece_count++;
	return piece;
}

static int may_have_one_more(struct sw_file *file)
{
	if (file->piece_count >= SLUICE_WINDOW_PIECES_MAX)
		return -EMFILE;
	return 0;
}

int sw_piece_lend(struct sw_file *file, struct sluice_window_piece *asked)
{
	struct sw_window *window = file->window;
	__le64 words[3];
	struct sw_piece *piece;
	u64 at, bytes;
	int err = may_have_one_more(file);

	if (err)
		return err;
	if (asked->bytes == 0 || asked->bytes > window->heap.count * SW_PAGE)
		return asked->bytes ? -ENOSPC : -EINVAL;
	bytes = ALIGN(asked->bytes, SW_PAGE);
	if (sw_pieces_bytes(window, file->uid) + bytes > sw_user_bytes_max(window))
		return -EDQUOT;
	at = sw_heap_lend(&window->heap, file->peer, bytes);
	if (!at)
		return -ENOSPC;
	/* What lies there was another connection's. */
	memset(window->view.in + at, 0, bytes);
	if (window->view.kind == SW_FLUSH)
		sw_flush_lines(window->view.in + at, bytes);
	piece = new_piece(file, at, bytes);
	if (!piece) {
		sw_heap_take_back(&window->heap, file->peer, at);
		return -ENOMEM;
	}
	words[0] = cpu_to_le64(at);
	words[1] = cpu_to_le64(bytes);
	words[2] = cpu_to_le64(file->port);
	err = sw_mail(window, file->peer, SW_GRANT, words, sizeof(words));
	if (err) {
		sw_heap_take_back(&window->heap, file->peer, at);
		list_del(&piece->list);
		file->piece_count--;
		kfree(piece);
		return err;
	}
	asked->at = at;
	asked->bytes = bytes;
	asked->offset = piece->offset;
	return 0;
}

static struct sw_grant *find_grant(struct sw_peer *peer, u64 at)
{
	struct sw_grant *grant;

	list_for_each_entry(grant, &peer->grants, list)
		if (grant->at == at)
			return grant;
	return NULL;
}

int sw_piece_borrow(struct sw_file *file, struct sluice_window_piece *asked)
{
	struct sw_grant *grant = find_grant(&file->window->peers[file->peer], asked->at);
	struct sw_piece *piece;
	int err = may_have_one_more(file);

	if (err)
		return err;
	if (!grant || grant->borrowed || grant->port != file->port)
		return -ENOENT;
	piece = new_piece(file, grant->at, grant->bytes);
	if (!piece)
		return -ENOMEM;
	piece->borrowed = true;
	grant->borrowed = true;
	asked->bytes = grant->bytes;
	asked->offset = piece->offset;
	return 0;
}

/* Mappings show the file's own page from now on. */
void sw_piece_kill(struct sw_file *file, struct sw_piece *piece)
{
	piece->state = SW_PIECE_DEAD;
	unmap_mapping_range(file->file->f_mapping, piece->offset, piece->bytes, 1);
}

/* The file has no more to do with it, and nobody here has it mapped. */
void sw_piece_end(struct sw_file *file, struct sw_piece *piece)
{
	list_del(&piece->list);
	file->piece_count--;
	if (piece->state == SW_PIECE_DEAD) {
		kfree(piece);
		return;
	}
	sw_piece_kill(file, piece);
	list_add_tail(&piece->list, &file->window->peers[file->peer].ending);
	sw_kick(file->window);
}

static void forget_grant(struct sw_peer *peer, u64 at)
{
	struct sw_grant *grant = find_grant(peer, at);

	if (!grant)
		return;
	list_del(&grant->list);
	peer->grant_count--;
	kfree(grant);
}

/* Tells the peer what ended, as far as there is room. */
int sw_pieces_say(struct sw_window *window, u32 number)
{
	struct sw_peer *peer = &window->peers[number];
	struct sw_piece *piece, *next;

	list_for_each_entry_safe(piece, next, &peer->ending, list) {
		__le64 at = cpu_to_le64(piece->at);
		int err;

		if (piece->told)
			continue;
		err = sw_mail(window, number, piece->borrowed ? SW_RETURN : SW_TAKE, &at,
			      sizeof(at));
		if (err)
			return err;
		piece->told = true;
		if (piece->borrowed) {
			forget_grant(peer, piece->at);
			list_del(&piece->list);
			kfree(piece);
		}
	}
	return 0;
}

static int granted(struct sw_window *window, struct sw_peer *peer, const u8 *data, u32 bytes)
{
	u64 heap = sw_heap_at(window->view.hosts);
	struct sw_grant *grant;
	__le64 words[3];
	u64 at, length;

	if (bytes != sizeof(words))
		return -EPROTO;
	memcpy(words, data, sizeof(words));
	at = le64_to_cpu(words[0]);
	length = le64_to_cpu(words[1]);
	if (!IS_ALIGNED(at, SW_PAGE) || !IS_ALIGNED(length, SW_PAGE) || length == 0 || at < heap ||
	    at > window->view.slot_bytes || length > window->view.slot_bytes - at ||
	    le64_to_cpu(words[2]) > U16_MAX || peer->grant_count >= SW_GRANTS_MAX)
		return -EPROTO;
	list_for_each_entry(grant, &peer->grants, list)
		if (at < grant->at + grant->bytes && grant->at < at + length)
			return -EPROTO;
	grant = kzalloc(sizeof(*grant), GFP_KERNEL);
	if (!grant)
		return -ENOMEM;
	grant->at = at;
	grant->bytes = length;
	grant->port = le64_to_cpu(words[2]);
	list_add_tail(&grant->list, &peer->grants);
	peer->grant_count++;
	return 0;
}

/* The lender wants it back: whoever has it here has it no more. */
static int taken(struct sw_window *window, u32 number, u64 at)
{
	struct sw_peer *peer = &window->peers[number];
	struct sw_grant *grant = find_grant(peer, at);
	struct sw_piece *piece;
	struct sw_file *file;

	/* It may have been given up while this was on its way. */
	if (!grant)
		return 0;
	list_for_each_entry(file, &window->files, list) {
		if (!file->attached || file->peer != number)
			continue;
		list_for_each_entry(piece, &file->pieces, list)
			if (piece->borrowed && piece->at == at && piece->state == SW_PIECE_LIVE)
				sw_piece_kill(file, piece);
	}
	/* Its RETURN is on the way, or will be. */
	list_for_each_entry(piece, &peer->ending, list)
		if (piece->borrowed && piece->at == at)
			return 0;
	piece = kzalloc(sizeof(*piece), GFP_KERNEL);
	if (!piece)
		return -ENOMEM;
	piece->borrowed = true;
	piece->state = SW_PIECE_DEAD;
	piece->at = at;
	list_add_tail(&piece->list, &peer->ending);
	return 0;
}

/* Nobody there writes to a piece any more. */
static int returned(struct sw_window *window, u32 number, u64 at)
{
	struct sw_peer *peer = &window->peers[number];
	struct sw_piece *piece, *next;
	struct sw_file *file;

	list_for_each_entry_safe(piece, next, &peer->ending, list) {
		if (piece->borrowed || piece->at != at)
			continue;
		sw_heap_take_back(&window->heap, number, at);
		list_del(&piece->list);
		kfree(piece);
		return 0;
	}
	/* Before it was asked to: the program here keeps it until its own end, with nobody else. */
	list_for_each_entry(file, &window->files, list) {
		if (!file->attached || file->ended || file->peer != number)
			continue;
		list_for_each_entry(piece, &file->pieces, list)
			if (!piece->borrowed && piece->at == at &&
			    piece->state == SW_PIECE_LIVE) {
				sw_piece_kill(file, piece);
				sw_heap_take_back(&window->heap, number, at);
				return 0;
			}
	}
	return -EPROTO;
}

int sw_pieces_message(struct sw_window *window, u32 number, u32 kind, const u8 *data, u32 bytes)
{
	__le64 at;

	if (kind == SW_GRANT)
		return granted(window, &window->peers[number], data, bytes);
	if (bytes != sizeof(at))
		return -EPROTO;
	memcpy(&at, data, sizeof(at));
	if (kind == SW_RETURN)
		return returned(window, number, le64_to_cpu(at));
	if (kind == SW_TAKE)
		return taken(window, number, le64_to_cpu(at));
	return -EPROTO;
}

/* Everything with this peer is over. Its pages stay its slot's (sw_heap.c). */
void sw_pieces_peer_ended(struct sw_window *window, u32 number)
{
	struct sw_peer *peer = &window->peers[number];
	struct sw_piece *piece, *next;
	struct sw_grant *grant, *other;
	struct sw_file *file;

	list_for_each_entry(file, &window->files, list) {
		if (!file->attached || file->ended || file->peer != number)
			continue;
		list_for_each_entry(piece, &file->pieces, list) {
			if (piece->state == SW_PIECE_DEAD)
				continue;
			sw_piece_kill(file, piece);
			if (!piece->borrowed)
				sw_heap_take_back(&window->heap, number, piece->at);
		}
	}
	list_for_each_entry_safe(piece, next, &peer->ending, list) {
		if (!piece->borrowed)
			sw_heap_take_back(&window->heap, number, piece->at);
		list_del(&piece->list);
		kfree(piece);
	}
	list_for_each_entry_safe(grant, other, &peer->grants, list) {
		list_del(&grant->list);
		kfree(grant);
	}
	peer->grant_count = 0;
}

static struct sw_piece *find_piece(struct sw_file *file, u64 offset)
{
	struct sw_piece *piece;

	list_for_each_entry(piece, &file->pieces, list)
		if (offset >= piece->offset && offset - piece->offset < piece->bytes)
			return piece;
	return NULL;
}

static vm_fault_t sw_fault(struct vm_fault *vmf)
{
	struct sw_file *file = vmf->vma->vm_file->private_data;
	struct sw_window *window = file->window;
	u64 offset = (u64)vmf->pgoff << PAGE_SHIFT;
	unsigned long pfn = page_to_pfn(virt_to_page((void *)file->page));
	struct sw_piece *piece;
	vm_fault_t fault;

	mutex_lock(&window->lock);
	piece = find_piece(file, offset);
	if (piece && piece->state == SW_PIECE_LIVE)
		pfn = window->config.ops->pfn(window->config.backend, &window->view,
					      piece->borrowed ? file->peer : window->view.me,
					      piece->at + (offset - piece->offset));
	/* With the lock held: whoever ends the piece finds the page mapped. */
	fault = vmf_insert_pfn(vmf->vma, vmf->address, pfn);
	mutex_unlock(&window->lock);
	return fault;
}

static const struct vm_operations_struct vm_ops = {
	.fault = sw_fault,
};

static void set_flags(struct vm_area_struct *area, unsigned long set, unsigned long clear)
{
#ifdef SW_HAS_VM_FLAGS_MOD
	vm_flags_mod(area, set, clear);
#else
	area->vm_flags = (area->vm_flags | set) & ~clear;
#endif
}

int sw_mmap(struct file *opened, struct vm_area_struct *area)
{
	struct sw_file *file = opened->private_data;
	struct sw_window *window = file->window;
	u64 offset = (u64)area->vm_pgoff << PAGE_SHIFT;
	u64 bytes = area->vm_end - area->vm_start;
	struct sw_piece *piece;
	int err = 0;

	/* A private copy of memory that a peer writes to would be no copy of anything. */
	if (!(area->vm_flags & VM_SHARED) || (area->vm_flags & VM_EXEC))
		return -EINVAL;
	mutex_lock(&window->lock);
	piece = find_piece(file, offset);
	if (window->state == SW_REMOVED)
		err = -ENODEV;
	else if (!piece || bytes > piece->bytes - (offset - piece->offset))
		err = -EINVAL;
	else if (piece->state == SW_PIECE_DEAD)
		err = -ENOLINK;
	mutex_unlock(&window->lock);
	if (err)
		return err;
	set_flags(area, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYEXEC);
	if (window->view.kind == SW_PUSH && piece->borrowed)
		area->vm_page_prot = pgprot_writecombine(area->vm_page_prot);
	area->vm_ops = &vm_ops;
	return 0;
}
